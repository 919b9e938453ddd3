"""The newest outputs of a mesh stay, and those that somebody writes to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from monarch_nb.allocator.logs import stored
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import drop_oldest, stored_outputs
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.proto import allocator_pb2 as pb


def test_the_newest_stay_and_those_that_runs_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_OUTPUTS", 3)
    mesh = Mesh(pb.SpawnRequest(mesh_id="m"), {0: RankSlot(untouched=4), 1: RankSlot()})
    mesh.add_run(Run(pb.Submit(mesh_id="m", run={"run_id": "long", "number": 2}, ranks=[1]), 1.0))
    for output in range(1, 9):
        (tmp_path / str(output)).mkdir()
        RankFiles(tmp_path, output, 0).path("out").write_bytes(b"a\n")

    drop_oldest(mesh, tmp_path, shutil.rmtree)

    assert stored_outputs(tmp_path) == [2, 4, 6, 7, 8]
    gone = RankFiles(tmp_path, 1, 0)
    assert (gone.read("out", 0, 2), gone.end().stdout_bytes) == (b"", 0), "who was reading it ends there"
