"""The allocator's memory on disk: one SQLite table of protobuf records. It survives a SIGKILL of the allocator."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

from google.protobuf.message import Message

from monarch_nb.proto import state_pb2

Kind = Literal["ended", "lease", "leaving", "mesh", "owed", "rank", "run", "template", "undertaking"]
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


def rank_key(mesh_id: str, rank: int) -> str:
    """Return the key of a rank's record."""
    return f"{mesh_id}/{rank}"


def leaving_key(record: state_pb2.RankRecord) -> str:
    """Return the key of a rank's record while it ends, and its successor has the one of the rank."""
    return f"{record.mesh_id}/{record.token}"


def run_key(mesh_id: str, run_id: str) -> str:
    """Return the key of a run's record."""
    return f"{mesh_id}/{run_id}"
