"""What a run prints that is waited for: in the cell that executes, or in a script line by line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch_nb.client.connections.events import Finished, Notice, Result, Text
from monarch_nb.client.presenting import show_calls_in
from monarch_nb.client.runs.printed import shown_here
from monarch_nb.errors import RankFailure
from monarch_nb.notebook.cells.calls import CellCalls

DIED = RankFailure(4, "host2", "died", "ProcessEnded", "exited with code 1")


def test_a_script_prints_whole_lines_with_their_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    listener = shown_here((0, 4))
    for event in (
        Notice("once on each of 2 nodes: [0] host1, [4] host2", key="world"),
        Text(0, "stdout", "step 1\nst"),
        Text(4, "stderr", "slow\n"),
        Text(0, "stdout", "ep 2"),
        Result(4, "died", 1.0, failure=DIED),
        Finished(),
    ):
        listener(event)
    out, errors = capsys.readouterr()
    assert out == "[0] step 1\n[0] step 2\n"
    assert errors == "once on each of 2 nodes: [0] host1, [4] host2\n[4] slow\n", "how it fails is raised"


def test_a_cell_shows_it_live_in_a_view_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    later: list[Callable[[], None]] = []

    def publish(bundle: dict[str, str], _: bool) -> None:
        shown.append(bundle["text/plain"])

    def call_later(_: float, callback: Callable[[], None]) -> None:
        later.append(callback)

    monkeypatch.setattr("monarch_nb.notebook.cells.calls.displaying", lambda: lambda: publish)
    monkeypatch.setattr("monarch_nb.notebook.cells.calls.call_later", call_later)
    monkeypatch.setattr("monarch_nb.notebook.output.view.FIRST_UPDATE_S", 0.0)
    cell = CellCalls(7, lambda _: None, terminal=False)
    leave = show_calls_in(lambda: cell)
    try:
        listener = shown_here((0, 4))
    finally:
        leave()
    listener(Text(4, "stdout", "step 1\n"))
    while not shown:
        later.pop(0)()
    assert shown == ["[4] step 1"], "before the cell returns"
    listener(Text(4, "stdout", "step 2\n"))
    cell.close(None)
    assert shown[-1] == "[4] step 1\n[4] step 2"
