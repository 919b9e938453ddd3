"""The allocator's memory on disk."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from monarch_nb.allocator.memory.database import AcceptedRuns, Database
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from unit.allocator.idle_node import MESH, make_node, spawn, submit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def lease(name: str) -> state_pb2.LeaseRecord:
    return state_pb2.LeaseRecord(request=pb.ReserveRequest(name=name), gpu_indices=[1, 2], confirmed=True)


def stored(path: Path) -> dict[str, state_pb2.LeaseRecord]:
    """Read as an allocator does that starts after a SIGKILL."""
    database = Database(path)
    found = dict(database.read("lease", state_pb2.LeaseRecord))
    database.close()
    return found


def test_what_was_flushed_survives(path: Path) -> None:
    database = Database(path)
    database.put("lease", "a", lease("first"))
    database.put("lease", "a", lease("dev"))
    database.put("lease", "b", lease("b"))
    database.put("mesh", "a", state_pb2.MeshRecord())
    database.flush()
    database.put("lease", "lost", lease("c"))
    assert stored(path) == {"a": lease("dev"), "b": lease("b")}


def test_deleted_written_again_and_never_written(path: Path) -> None:
    database = Database(path)
    database.put("lease", "a", lease("a"))
    database.flush()
    database.delete("lease", "a")
    database.delete("lease", "never")
    database.flush()
    assert stored(path) == {}
    database.put("lease", "a", lease("again"))
    database.put("lease", "b", lease("b"))
    database.delete("lease", "b")
    database.flush()
    assert stored(path) == {"a": lease("again")}
    database.delete("lease", "a")
    database.put("lease", "a", lease("last"))
    database.flush()
    assert stored(path) == {"a": lease("last")}


def test_a_prefix_goes_whether_written_or_not(path: Path) -> None:
    database = Database(path)
    database.put("lease", "m1/written", lease("a"))
    database.put("lease", "m2/stays", lease("a"))
    database.put("mesh", "m1/other-kind", state_pb2.MeshRecord())
    database.flush()
    database.put("lease", "m1/pending", lease("a"))
    database.delete_prefix("lease", "m1/")
    database.flush()
    assert set(stored(path)) == {"m2/stays"}
    assert len(list(database.read("mesh", state_pb2.MeshRecord))) == 1


def test_a_full_disk_keeps_it_pending(path: Path) -> None:
    database = Database(path)
    database.put("lease", "b/1", lease("b"))
    database.flush()
    database._connection.execute("PRAGMA max_page_count = 2")
    database.put("lease", "a", lease("a" * 100_000))
    with pytest.raises(sqlite3.Error, match="full"):
        database.flush()
    database.delete("lease", "b/1")  # does not raise
    database.delete_prefix("lease", "b/")
    database._connection.execute("PRAGMA max_page_count = 1000000")
    database.flush()
    assert set(stored(path)) == {"a"}


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
