"""The allocator's memory on disk."""

import sqlite3
from pathlib import Path

import pytest

from monarch_nb.allocator.recovery.database import Database
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2


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
