"""The bytes of a rank's output, wherever they lie: in files of their own while something may be written, later in the
archive of the mesh (monarch_nb.allocator.logs.archive).

Who reads looks for the file first. What is archived is in the archive before the file goes, so it is always found.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from monarch_nb.allocator.logs.archive import Archive, Entry
from monarch_nb.config import run_file
from monarch_nb.sizes import size


@dataclass(frozen=True)
class Dropped:
    """What is gone of a rank's output: everything before these offsets, and what the limit was."""

    out: int = 0
    err: int = 0
    marks: int = 0
    limit_bytes: int = 0

    def before(self, kind: str) -> int:
        """Return where what is left of a file begins: a line, or a mark."""
        return {"out": self.out, "err": self.err, "marks": self.marks}[kind]

    def line(self, size_bytes: int) -> bytes:
        """Return what is shown in place of so much of it."""
        return f"… {size(size_bytes)} of earlier lines dropped (limit {size(self.limit_bytes)})".encode()

    def to_json(self) -> str:
        """Return what is written down."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class StoredFiles:
    """The three files of one rank and output (RunSpec.output).

    Attributes:
        archive: the mesh's, if it may have one.
        entry: what the archive knows of this output, where it was found there.
    """

    runs: Path
    output: int
    rank: int
    archive: Archive | None = field(default=None, compare=False, repr=False)
    entry: Entry | None = field(default=None, compare=False, repr=False)

    def path(self, kind: str) -> Path:
        """Return where a file lies while it is not archived."""
        return run_file(self.runs, self.output, self.rank, kind)

    def archived(self) -> Entry | None:
        """Return what the archive knows of this output; None: it is not in there."""
        return self.archive.find(self.output, self.rank) if self.archive is not None else None

    def size_bytes(self, kind: str) -> int:
        """Return how large a file is; 0 when there is none."""
        if self.entry is not None:
            return self.entry.size_bytes(kind)
        try:
            return self.path(kind).stat().st_size
        except FileNotFoundError:
            entry = self.archived()
            return entry.size_bytes(kind) if entry is not None else 0

    def read(self, kind: str, start: int, end: int) -> bytes:
        """Return a part of a file; what was dropped of it reads as zeros."""
        if end <= start:
            return b""
        if self.entry is not None and self.archive is not None:
            return self.archive.read(self.entry, kind, start, end)
        try:
            with self.path(kind).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            entry = self.archived()
            if self.archive is None or entry is None:
                raise
            return self.archive.read(entry, kind, start, end)

    def note_run(self, number: int) -> None:
        """Note which run wrote here, when it is not the one that the files were made for: the node forgets runs."""
        with contextlib.suppress(OSError):  # a full disk: the log has the output's number
            self.path("run").write_text(str(number))

    def run_number(self, known: Mapping[tuple[int, int], int]) -> int:
        """Return the number of the run that wrote here.

        Args:
            known: by output and rank, of the runs that the node remembers.
        """
        try:
            return int(self.path("run").read_text())
        except (OSError, ValueError):
            entry = self.archived()
            return entry.number if entry is not None else known.get((self.output, self.rank), self.output)

    def dropped(self) -> Dropped:
        """Return what is gone."""
        try:
            if self.entry is None:
                return _parsed(self.path("dropped").read_text())
        except FileNotFoundError:
            pass
        entry = self.archived()  # again: the limit may have dropped more
        return _parsed(entry.dropped) if entry is not None else Dropped()

    def note_dropped(self, dropped: Dropped) -> None:
        """Note what is (about to be) gone, in one step."""
        partial = self.path("dropping")
        partial.write_text(dropped.to_json())
        partial.replace(self.path("dropped"))


def _parsed(noted: str) -> Dropped:
    return Dropped(**json.loads(noted)) if noted else Dropped()


def stored_outputs(runs: Path) -> list[int]:
    """Return the numbers of the outputs that have files, oldest first."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(runs) if entry.name.isdigit())
    except FileNotFoundError:
        return []
