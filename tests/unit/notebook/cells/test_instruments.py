"""What stands below a cell of what its instruments found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.runs.run import Run
from monarch_nb.errors import MonarchNbError
from monarch_nb.notebook.cells import instruments, progress
from monarch_nb.notebook.cells.instruments import CellInstrument, show_found
from monarch_nb.notebook.output.tables import calm_line

TIMEOUT_S = 60.0


class Page:
    """What a notebook shows. `written` is set when something is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        self.written = threading.Event()
        monkeypatch.setattr(progress, "show_updatable", self.show)
        monkeypatch.setattr(instruments, "show", self.show)

    def show(self, shown: object) -> Any:
        place = len(self.shown)
        self.shown.append(str(shown))
        self.written.set()
        return SimpleNamespace(update=lambda other: self.shown.__setitem__(place, str(other)))


def ended(*kinds: str) -> Any:
    """Return a run on two ranks that has failed on some, in these ways."""
    return SimpleNamespace(is_script=True, ranks=(0, 1), failures=[SimpleNamespace(kind=kind) for kind in kinds])


def test_a_line_counts_until_the_ranks_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    page, meanwhile = Page(monkeypatch), []
    run = ended()

    def found(_: Run) -> Iterator[object]:
        assert page.written.wait(TIMEOUT_S)
        meanwhile.extend(page.shown)
        yield from map(calm_line, ("a table", "a trace"))

    show_found([CellInstrument("--profile", "torch-profile", {}, found)], run, in_place=True)
    assert meanwhile[0].startswith("--profile: the ranks write down what they recorded… ")
    assert page.shown == ["a table", "a trace"]


def test_what_can_not_be_shown_is_said_and_of_a_run_that_never_began_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(monkeypatch)

    def found(_: Run) -> Iterator[object]:
        raise MonarchNbError("the disk is full")
        yield

    asked = [CellInstrument("--profile", "torch-profile", {}, found)]
    show_found(asked, ended("cancelled", "cancelled"), in_place=True)
    assert page.shown == []
    for run in (ended(), ended("cancelled"), ended("cancelled", "died"), ended("interrupted", "interrupted")):
        show_found(asked, run, in_place=True)
        assert page.shown == ["--profile: the disk is full"]
        page.shown.clear()
