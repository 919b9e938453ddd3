"""The allocator's memory on disk: a table of records, and two files of what is newer. It survives a SIGKILL of it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

from google.protobuf.message import Message

from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import NUMBERS_TO_SPARE, NodePaths
from monarch_nb.ground.frames import encode_frame, split_frames
from monarch_nb.proto import state_pb2

Kind = Literal["ended", "lease", "leaving", "mesh", "notice", "rank", "run", "template", "undertaking"]
_Record = TypeVar("_Record", bound=Message)


class Database:
    """Records by kind and key. Writes are grouped: call `flush` once after a change.

    The write-ahead log without fsync is safe against the end of this process; only a power cut can lose the last
    writes, and then the ranks are gone as well.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS record (kind TEXT, key TEXT, body BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID"
        )
        self._pending: dict[tuple[Kind, str], bytes | None] = {}
        self._written: set[tuple[Kind, str]] = set(self._connection.execute("SELECT kind, key FROM record"))

    def put(self, kind: Kind, key: str, record: Message) -> None:
        """Write a record at the next flush."""
        self._pending[kind, key] = record.SerializeToString()

    def delete(self, kind: Kind, key: str) -> None:
        """Delete a record at the next flush; one that was never written costs nothing."""
        if (kind, key) in self._written:
            self._pending[kind, key] = None
        else:
            self._pending.pop((kind, key), None)

    def delete_prefix(self, kind: Kind, prefix: str) -> None:
        """Delete every record whose key begins with `prefix` at the next flush."""
        for name in [name for name in self._written | self._pending.keys() if name[0] == kind]:
            if name[1].startswith(prefix):
                self.delete(*name)

    def flush(self) -> None:
        """Write what is pending, in one transaction; a full disk raises sqlite3.Error and keeps it pending."""
        if not self._pending:
            return
        self._connection.execute("BEGIN")
        try:
            for (kind, key), body in self._pending.items():
                if body is None:
                    self._connection.execute("DELETE FROM record WHERE kind = ? AND key = ?", (kind, key))
                else:
                    self._connection.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, key, body))
        except sqlite3.Error:
            if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        self._written |= {name for name, body in self._pending.items() if body is not None}
        self._written -= {name for name, body in self._pending.items() if body is None}
        self._pending.clear()

    def read(self, kind: Kind, record_class: type[_Record]) -> Iterator[tuple[str, _Record]]:
        """Yield every record of a kind with its key."""
        for key, body in self._connection.execute("SELECT key, body FROM record WHERE kind = ? ORDER BY key", (kind,)):
            record = record_class()
            record.ParseFromString(body)
            yield key, record

    def close(self) -> None:
        """Close; what was not flushed is lost."""
        self._connection.close()


def key_of(mesh_id: str, part: int | str) -> str:
    """Return the key of the record of a rank, a run, or by its token of a process that ends while its successor has the
    one of the rank."""
    return f"{mesh_id}/{part}"


class RunNumbers:
    """The newest run's number of each mesh, written down before anybody is told of it: no number is given twice.

    A file of each mesh is overwritten in place, which takes 4 µs and no room on the disk; the database, to which runs
    are written a few at once, may not have the newest.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths
        self._files: dict[str, int] = {}

    def note(self, mesh_id: str, number: int) -> None:
        """Note the newest number; when that can not be done, that it is not known."""
        try:
            if mesh_id not in self._files:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._files[mesh_id] = os.open(self._paths.newest_run(mesh_id), flags, 0o600)
            os.pwrite(self._files[mesh_id], b"%020d" % number, 0)
        except OSError:
            with contextlib.suppress(OSError):
                self._paths.newest_run(mesh_id).unlink()
            self.forget(mesh_id)

    def newest(self, mesh: Mesh) -> int:
        """Return the newest number that the allocator before this one gave, or a higher one."""
        mesh_id = mesh.spec.mesh_id
        known = max([*mesh.numbers, *stored_outputs(self._paths.runs(mesh_id))], default=0)
        try:
            return max(known, int(self._paths.newest_run(mesh_id).read_bytes()))
        except (OSError, ValueError):
            return known + NUMBERS_TO_SPARE

    def forget(self, mesh_id: str) -> None:
        """The mesh is gone."""
        with contextlib.suppress(KeyError):
            os.close(self._files.pop(mesh_id))

    def close(self) -> None:
        """Write no more."""
        for mesh_id in list(self._files):
            self.forget(mesh_id)


class AcceptedRuns:
    """A file to which each run is added before its client is told that it was accepted: neither needs to live for the
    run to be known. That takes some 5 µs; the database takes several runs at once, later, and then the file is empty.

    As with the database nothing is forced to the disk: a machine that loses its power loses the ranks as well.
    """

    def __init__(self, paths: NodePaths) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(paths.accepted_runs, flags, 0o600)
        self._size_bytes = os.fstat(self._file).st_size

    def add(self, record: state_pb2.RunRecord) -> None:
        """Add a run. On a full disk it is not written, nor half of it: then the ranks and the client know it."""
        frame = encode_frame(record.SerializeToString())
        with contextlib.suppress(OSError):
            if os.write(self._file, frame) == len(frame):
                self._size_bytes += len(frame)
            else:
                os.ftruncate(self._file, self._size_bytes)

    def read(self) -> list[state_pb2.RunRecord]:
        """Return what the allocator before this one has accepted and not written to the database. One that was cut off,
        because that was killed, was not accepted."""
        frames = list(split_frames(os.pread(self._file, self._size_bytes, 0)))
        self._size_bytes = sum(len(encode_frame(frame)) for frame in frames)
        os.ftruncate(self._file, self._size_bytes)
        return [state_pb2.RunRecord.FromString(frame) for frame in frames]

    def clear(self) -> None:
        """All of them are in the database."""
        if self._size_bytes:
            os.ftruncate(self._file, 0)
            self._size_bytes = 0

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)
