"""Runs that are not in the database yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb.allocator.recovery.accepted_runs import AcceptedRuns
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from unit.allocator.idle_node import MESH, make_node, spawn, submit


def run(run_id: str) -> state_pb2.RunRecord:
    return state_pb2.RunRecord(submit=pb.Submit(run=run_pb2.RunSpec(run_id=run_id)))


def names(accepted: AcceptedRuns) -> list[str]:
    return [record.submit.run.run_id for record in accepted.read()]


def test_what_was_added_is_read_until_it_is_cleared(tmp_path: Path) -> None:
    accepted = AcceptedRuns(NodePaths(tmp_path))
    accepted.add(run("a"))
    accepted.add(run("b"))
    assert names(AcceptedRuns(NodePaths(tmp_path))) == ["a", "b"]
    accepted.clear()
    accepted.add(run("c"))
    assert names(AcceptedRuns(NodePaths(tmp_path))) == ["c"]


def test_one_that_was_cut_off_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, write = NodePaths(tmp_path), os.write
    accepted = AcceptedRuns(paths)
    with monkeypatch.context() as patch:  # by a full disk
        patch.setattr(os, "write", lambda file, data: write(file, data[:5]))
        accepted.add(run("half"))
    accepted.add(run("a"))
    with paths.accepted_runs.open("ab") as file:  # by a kill
        file.write(b"\x00\x00\x00\x09cut")
    accepted = AcceptedRuns(paths)
    assert names(accepted) == ["a"]
    accepted.add(run("b"))
    assert names(AcceptedRuns(paths)) == ["a", "b"]


async def test_they_are_in_the_database_after_the_first_start(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    await spawn(node)
    node.records.flush()
    submit(node, "run")
    for _ in range(2):  # the first one was killed before it wrote the run to the database, the second one soon after
        node = make_node(tmp_path)
        node.records.read()
        assert list(node.state.meshes[MESH].runs) == ["run"]
        node.records.flush()
        assert not node.paths.accepted_runs.stat().st_size
