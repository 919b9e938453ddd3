"""The files of a rank's output. Those of the newest runs of a mesh are kept, so that a node has a bounded number of
files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import run_file
from monarch_nb.sizes import size

MOST_OUTPUTS = 1_000
"""So many of a mesh are kept, the newest."""
DROPPED_TOGETHER = 100


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


@dataclass(frozen=True)
class StoredFiles:
    """The three files of one rank and output (RunSpec.output)."""

    runs: Path
    output: int
    rank: int

    def path(self, kind: str) -> Path:
        """Return where a file lies."""
        return run_file(self.runs, self.output, self.rank, kind)

    def size_bytes(self, kind: str) -> int:
        """Return how large a file is; 0 when there is none."""
        try:
            return self.path(kind).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, kind: str, start: int, end: int) -> bytes:
        """Return a part of a file, nothing when it has gone; what was dropped of it reads as zeros."""
        if end <= start:
            return b""
        try:
            with self.path(kind).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            return b""

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
            return known.get((self.output, self.rank), self.output)

    def dropped(self) -> Dropped:
        """Return what is gone."""
        try:
            return Dropped(**json.loads(self.path("dropped").read_text()))
        except FileNotFoundError:
            return Dropped()

    def note_dropped(self, dropped: Dropped) -> None:
        """Note what is (about to be) gone, in one step."""
        partial = self.path("dropping")
        partial.write_text(json.dumps(asdict(dropped)))
        partial.replace(self.path("dropped"))


def stored_outputs(runs: Path) -> list[int]:
    """Return the numbers of the outputs that have files, oldest first."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(runs) if entry.name.isdigit())
    except FileNotFoundError:
        return []


def drop_oldest(mesh: Mesh, runs: Path, remove: Callable[[Path], None]) -> None:
    """Drop the outputs of a mesh that are too many, but none that a run writes to or may write to next.

    Args:
        remove: takes a directory away, in the background.
    """
    busy = {run.output for run in mesh.queue} | {slot.untouched for slot in mesh.ranks.values()}
    for output in stored_outputs(runs)[:-MOST_OUTPUTS]:
        if output not in busy:
            remove(runs / str(output))
