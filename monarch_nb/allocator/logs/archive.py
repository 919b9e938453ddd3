"""What the ranks of a mesh wrote in old runs, put together in one SQLite database: however many runs there were, it is
three files.

It holds what was in the files of a rank and output, byte for byte, so that every position and number of a line stays
what it was. A rank's output is there as a whole or not at all: its row in `output` is written last.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch_nb.config import archive_file

PIECE_BYTES = 64 << 10
"""Files are cut into pieces of so much."""
_TRANSACTION_BYTES = 1 << 20
"""Who reads waits for no more being written."""
_PAGE_ROWS = 500
_VACUUM_PAGES = 256
_SETTINGS = """
PRAGMA auto_vacuum=INCREMENTAL;
PRAGMA journal_mode=WAL;
PRAGMA synchronous=OFF;
PRAGMA journal_size_limit=4194304;
CREATE TABLE IF NOT EXISTS output (
    output INTEGER, rank INTEGER, number INTEGER, written_s REAL, used_bytes INTEGER,
    out INTEGER, err INTEGER, marks INTEGER, out_lines INTEGER, err_lines INTEGER, dropped TEXT,
    PRIMARY KEY (output, rank)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_rank ON output (rank, number, output);
CREATE INDEX IF NOT EXISTS by_age ON output (written_s) WHERE used_bytes > 0;
CREATE TABLE IF NOT EXISTS piece (
    output INTEGER, rank INTEGER, kind TEXT, start INTEGER, body BLOB, PRIMARY KEY (output, rank, kind, start)
);
"""
"""As with the allocator's own database, only a power cut can lose what was written last."""

Piece = tuple[str, int, bytes]
"""Kind of file, where in it, and what is there."""


class Entry(NamedTuple):
    """What is known of one rank's output.

    Attributes:
        number: of the run that wrote it.
        written_s: when something was written last.
        used_bytes: what it takes, without what was dropped.
        out, err, marks: how large the files were.
        out_lines, err_lines: how many lines there are; what was dropped is one.
        dropped: what RANK.dropped said.
    """

    output: int
    rank: int
    number: int
    written_s: float
    used_bytes: int
    out: int
    err: int
    marks: int
    out_lines: int
    err_lines: int
    dropped: str = ""

    def size_bytes(self, kind: str) -> int:
        """Return how large a file was."""
        return {"out": self.out, "err": self.err, "marks": self.marks}[kind]


_COLUMNS = ", ".join(Entry._fields)
_INSERT = f"INSERT INTO output ({_COLUMNS}) VALUES ({', '.join('?' * len(Entry._fields))})"
_INSERT_PIECE = "INSERT INTO piece VALUES (?, ?, ?, ?, ?)"
_OF_FILE = "output = ? AND rank = ? AND kind = ?"


class Archive:
    """The old outputs of a mesh. From any thread.

    Attributes:
        newest: the highest output that is in here; 0 when there is none.
        used_bytes: what all of them take.

    Raises:
        OSError: from every method, when the database can not be read or written.
    """

    def __init__(self, runs: Path) -> None:
        self._path = archive_file(runs)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self.newest, self.used_bytes = 0, 0
        if self._path.exists():
            ((newest, used_bytes),) = self._select("SELECT max(output), total(used_bytes) FROM output")
            self.newest, self.used_bytes = newest or 0, int(used_bytes)

    # ---- reading ----

    def find(self, output: int, rank: int) -> Entry | None:
        """Return what is known of a rank's output; None: it is not in here."""
        if output > self.newest:
            return None
        rows = self._select(f"SELECT {_COLUMNS} FROM output WHERE output = ? AND rank = ?", output, rank)
        return Entry(*rows[0]) if rows else None

    def read(self, entry: Entry, kind: str, start: int, end: int) -> bytes:
        """Return a part of a file; what was dropped of it reads as zeros."""
        end = min(end, entry.size_bytes(kind))
        data = bytearray(max(0, end - start))
        rows = self._select(
            "SELECT start, body FROM piece WHERE output = ? AND rank = ? AND kind = ? AND start > ? AND start < ?",
            *(entry.output, entry.rank, kind, start - PIECE_BYTES, end),
        )
        for at, body in rows:
            wanted = body[max(0, start - at) : end - at]
            first = max(at, start) - start
            data[first : first + len(wanted)] = wanted
        return bytes(data)

    def of_rank(self, rank: int, number: int = 0, *, newest_first: bool = False) -> Iterator[Entry]:
        """Yield the outputs of a rank in the order of their runs, of one run or of all. What changes meanwhile may be
        among them or not."""
        comparison, order, last = ("<", "DESC", 1 << 62) if newest_first else (">", "ASC", 0)
        further = f"number = ? AND output {comparison} ?" if number else f"(number, output) {comparison} (?, ?)"
        after = (number or last, last)
        while self.newest:
            rows = self._select(
                f"SELECT {_COLUMNS} FROM output WHERE rank = ? AND {further} "
                f"ORDER BY number {order}, output {order} LIMIT {_PAGE_ROWS}",
                *(rank, *after),
            )
            entries = [Entry(*row) for row in rows]
            yield from entries
            if len(entries) < _PAGE_ROWS:
                return
            after = (entries[-1].number, entries[-1].output)

    def oldest(self, enough_bytes: int) -> list[Entry]:
        """Return the outputs that were written the longest ago, until they take as much as that."""
        found: list[Entry] = []
        if self.used_bytes:
            with self._opened() as connection:
                for row in connection.execute(f"SELECT {_COLUMNS} FROM output WHERE used_bytes > 0 ORDER BY written_s"):
                    found.append(Entry(*row))
                    enough_bytes -= found[-1].used_bytes
                    if enough_bytes <= 0:
                        break
        return found

    # ---- writing, from one thread at a time ----

    def add(self, entry: Entry, pieces: Iterable[Piece]) -> None:
        """Put a rank's output in here. Who is killed meanwhile has put nothing in."""
        key = (entry.output, entry.rank)
        statements: list[tuple[str, Sequence[object]]] = [("DELETE FROM piece WHERE output = ? AND rank = ?", key)]
        size_bytes = 0
        for piece in pieces:
            statements.append((_INSERT_PIECE, (*key, *piece)))
            size_bytes += len(piece[2])
            if size_bytes >= _TRANSACTION_BYTES:
                self._write(statements)
                statements, size_bytes = [], 0
        self._write([*statements, (_INSERT, entry)])
        self.newest = max(self.newest, entry.output)
        self.used_bytes += entry.used_bytes

    def drop(self, entry: Entry, kind: str, left: int, dropped: str) -> Entry:
        """Drop the beginning of a file, up to `left`; return what is known of the output then.

        Args:
            dropped: what is noted of it.
        """
        key, left_of_file = (entry.output, entry.rank), (entry.output, entry.rank, kind, left)
        cut = self._select(f"SELECT max(start), body FROM piece WHERE {_OF_FILE} AND start < ?", *left_of_file)
        rest = [body[left - start :] for start, body in cut if body and start + len(body) > left]
        whole = self._select(f"SELECT body FROM piece WHERE {_OF_FILE} AND start >= ? ORDER BY start", *left_of_file)
        bodies = [*rest, *(body for (body,) in whole)]
        others = self._select(
            "SELECT total(length(body)) FROM piece WHERE output = ? AND rank = ? AND kind != ?", *key, kind
        )
        used_bytes = int(others[0][0]) + sum(map(len, bodies))
        lines = {"out": entry.out_lines, "err": entry.err_lines, kind: 1 + lines_in(bodies)}
        changed = entry._replace(used_bytes=used_bytes, out_lines=lines["out"], err_lines=lines["err"], dropped=dropped)
        self._write(
            [
                (f"DELETE FROM piece WHERE {_OF_FILE} AND start < ?", left_of_file),
                *((_INSERT_PIECE, (*left_of_file, body)) for body in rest),
                ("DELETE FROM output WHERE output = ? AND rank = ?", key),
                (_INSERT, changed),
            ]
        )
        self.used_bytes += used_bytes - entry.used_bytes
        return changed

    def shrink(self) -> None:
        """Give the room of what was dropped back to the disk."""
        before = 0
        while (free := self._select("PRAGMA freelist_count")[0][0]) and free != before:
            before = free
            self._select(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    # ---- the database ----

    def _select(self, query: str, *values: object) -> list[Any]:
        with self._opened() as connection:
            return connection.execute(query, values).fetchall()

    def _write(self, statements: Iterable[tuple[str, Sequence[object]]]) -> None:
        with self._opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in statements:
                    connection.execute(statement, values)
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:  # SQLite itself rolls back when the disk is full
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._is_closed:
                raise FileNotFoundError(f"{self._path} is closed: the mesh was released")
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                    self._connection.executescript(_SETTINGS)
                yield self._connection
            except sqlite3.Error as error:
                raise OSError(f"{self._path}: {error}") from error

    def close(self) -> None:
        """Read and write no more."""
        with self._lock:
            self._is_closed, self.newest, self.used_bytes = True, 0, 0
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def lines_in(pieces: Iterable[bytes]) -> int:
    """Return how many lines begin in what comes piece by piece."""
    lines, last = 0, b"\n"
    for body in pieces:
        lines += body.count(b"\n")
        last = body[-1:] or last
    return lines + (last != b"\n")


class Archives:
    """The archives of a node's meshes, each made when it is needed first."""

    def __init__(self) -> None:
        self._archives: dict[Path, Archive] = {}
        self._lock = threading.Lock()

    def of(self, runs: Path) -> Archive:
        """Return the archive of a mesh whose outputs lie in a directory. From any thread."""
        with self._lock:
            if runs not in self._archives:
                self._archives[runs] = Archive(runs)
            return self._archives[runs]

    def forget(self, runs: Path) -> None:
        """The mesh is gone."""
        with self._lock:
            archive = self._archives.pop(runs, None)
        if archive is not None:
            archive.close()

    def close(self) -> None:
        """Close all."""
        for runs in list(self._archives):
            self.forget(runs)
