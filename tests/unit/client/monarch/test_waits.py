"""A cell that waits for Monarch for long says what goes on, for as long as it waits."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from monarch_nb.client import presenting
from monarch_nb.client.monarch import engine

LIMIT_S = 30.0


class Cell:
    """A cell, which notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_told = threading.Event()

    def tell(self, text: str, key: str = "") -> None:
        self.told.append((text, key))
        self.is_told.set()


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    monkeypatch.setattr(presenting, "_cells", [lambda: cast("Any", cell)])
    return cell


def test_a_long_wait_is_explained_until_it_is_over(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AFTER_S", 0.0)
    looked = engine.Waits(lambda: "trainers.step: rank 0 runs it")
    with looked.waiting():
        assert cell.is_told.wait(LIMIT_S)
    assert set(cell.told[:-1]) == {("trainers.step: rank 0 runs it", engine.NOTICE)}
    assert cell.told[-1] == ("", engine.NOTICE)


def test_who_waits_after_a_long_wait_is_not_told_late(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long wait is asked of less and less often."""
    monkeypatch.setattr(engine, "AFTER_S", 0.0)

    def said() -> str:
        looked._waits[0].pause_s = 10 * LIMIT_S
        return "trainers.step: rank 0 runs it"

    looked = engine.Waits(said)
    for _ in range(2):
        with looked.waiting():
            assert cell.is_told.wait(LIMIT_S)
        cell.is_told.clear()


def test_what_was_learnt_too_late_is_not_said(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AFTER_S", 0.0)
    asked, is_over = threading.Event(), threading.Event()

    def said() -> str:
        asked.set()
        assert is_over.wait(LIMIT_S)
        return "trainers.step: rank 0 runs it"

    looked = engine.Waits(said)
    with looked.waiting():
        assert asked.wait(LIMIT_S)
    is_over.set()
    (watch,) = [thread for thread in threading.enumerate() if thread.name == "monarch_nb waits"]
    watch.join(LIMIT_S)
    assert cell.told == []


def test_short_waits_ask_nothing_and_scripts_are_left_alone(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        raise AssertionError("nobody has waited for long")

    looked = engine.Waits(said)
    for _ in range(3):
        with looked.waiting():
            pass
    assert cell.told == []
    monkeypatch.setattr(presenting, "_cells", [])
    before = threading.active_count()
    with engine.Waits(said).waiting():
        assert threading.active_count() == before
