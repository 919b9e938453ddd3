"""In whose name actors are called: how a cell ends what it has called."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.actors import calls
from monarch_nb.client.actors.calls import Callers


def test_a_look_at_the_calls_while_the_cell_ends_takes_no_run_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would not wait for what was printed, which would be missing in the cell."""
    done: list[str] = []
    run: Any = SimpleNamespace(
        id="calls", end=lambda: done.append("ended"), wait_printed=lambda _: done.append("waited for")
    )
    nothing: Any = SimpleNamespace(mesh=lambda _: None)
    callers = Callers(nothing, nothing, list)
    callers._current._runs["mesh"] = run

    async def end(_: Iterable[Any], *, is_interrupted: bool) -> None:
        callers._look_again()

    monkeypatch.setattr(callers._behind, "end", end)
    assert callers.end_cell(is_interrupted=False) is False
    assert done == ["ended", "waited for"]


def test_a_run_that_is_being_opened_holds_up_nobody_who_looks_at_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background loop does, and brings the number that is waited for."""
    ended: list[str] = []
    looked: list[bool] = []

    def look(_: float) -> None:
        loop = threading.Thread(target=callers.current.end, daemon=True)
        loop.start()
        loop.join(5)
        looked.append(not loop.is_alive())

    run = SimpleNamespace(
        id="calls",
        number=7,
        is_interrupted=False,
        waits_everywhere=False,
        wait_number=look,
        add_listener=lambda _: None,
        end=lambda: ended.append("calls"),
    )
    mesh = SimpleNamespace(name="main", extent=SimpleNamespace(size=2), open_calls=lambda *_, **__: run)
    meshes: Any = SimpleNamespace(mesh=lambda _: mesh, in_reach=lambda mesh_ids: mesh_ids)
    audience: Any = SimpleNamespace(listener=lambda *_: None)
    monkeypatch.setattr(calls, "_hearing", lambda *_: None)
    callers = Callers(meshes, audience, list)
    tag = callers.current.tag(["m"], "trainers.step")
    assert (looked, ended) == ([True], []), "nor is it ended before anything was called in its name"
    assert tag.runs["m"][:2] == ("calls", 7)
    assert callers.current.tag(["m"], "trainers.step") is tag
    callers.current.end()
    assert ended == ["calls"]
