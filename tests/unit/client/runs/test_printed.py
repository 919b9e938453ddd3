"""What a run prints that is waited for: in the cell that executes, or in a script line by line."""

from __future__ import annotations

import pytest

from monarch_nb.client.connections.events import Finished, Notice, Result, Text
from monarch_nb.client.runs.printed import shown_here
from monarch_nb.errors import RankFailure

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
