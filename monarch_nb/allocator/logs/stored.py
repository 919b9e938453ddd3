"""The files of a rank's output. Those of the newest runs of a mesh are kept, so that a node has a bounded number of
files; and those of meshes that have ended, for some days, and no longer than there is room for them. Nothing is copied:
the outputs of a mesh move as they are, with a note of whose they are and what its runs were.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from monarch_nb.allocator.state.runs import Mesh, RankSlot, failed_results, run_status
from monarch_nb.config import MAIN_MESH, NodePaths, run_file
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.sizes import size

if TYPE_CHECKING:
    from monarch_nb.allocator.state.state import NodeState

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


KEPT_S = 7 * 86400.0
MOST = 200
"""So many meshes' outputs are kept: a script of seconds that reserves for itself leaves one each time."""
_NOTE = "mesh"


class KeptLogs:
    """The outputs of meshes that have ended on a node.

    Args:
        remove: takes a directory away, in the background.

    Attributes:
        of_reservation: of reservations that this allocator has seen end, by id, their names and where the output of
            their main meshes lies.
    """

    def __init__(self, paths: NodePaths, remove: Callable[[Path], None]) -> None:
        self._paths, self._remove = paths, remove
        self.of_reservation: dict[str, tuple[str, Path]] = {}

    def note(self, mesh: Mesh, reservation: pb.ReserveRequest) -> None:
        """Write down whose a mesh is that is about to end, and what its runs were; nothing if it printed nothing."""
        directory = self._paths.mesh(mesh.spec.mesh_id)
        if not _is_printed(self._paths.runs(mesh.spec.mesh_id)):
            return
        now_s = time.time()
        statuses = [
            run_status(mesh, run, now_s, failed_results(run, with_tracebacks=True)) for run in mesh.runs.values()
        ]
        told = pb.MeshStatus(
            mesh_id=mesh.spec.mesh_id, name=mesh.spec.name, runs=statuses, last_number=mesh.last_number
        )
        for rank in sorted(mesh.ranks):
            told.ranks.add(rank=rank)
        past = pb.PastLog(reservation_id=reservation.reservation_id, reservation=reservation.name, ended_at=now_s)
        past.owner = reservation.owner
        past.mesh.CopyFrom(told)
        for run in mesh.queue:  # those that have finished have noted it
            for rank in run.started - run.results.keys() if run.output != run.number else ():
                StoredFiles(self._paths.runs(mesh.spec.mesh_id), run.output, rank).note_run(run.number)
        with contextlib.suppress(OSError):  # a full disk keeps no mesh from its end
            (directory / _NOTE).write_bytes(past.SerializeToString())

    def keep(self, directory: Path) -> None:
        """Take what is to be kept out of the directory of a mesh that has ended: last its note, so that whoever is
        killed meanwhile goes on with it. What is too old goes."""
        with contextlib.suppress(OSError):
            past = pb.PastLog.FromString((directory / _NOTE).read_bytes())
            kept = self._paths.logs / _directory_name(past)
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (directory / "runs", directory / _NOTE):
                with contextlib.suppress(FileNotFoundError):
                    path.rename(kept / path.name)
            if past.mesh.name == MAIN_MESH:
                self.of_reservation[past.reservation_id] = past.reservation, kept
        self._expire()

    def _expire(self) -> None:
        oldest_s = time.time() - KEPT_S
        notes = ((note.stat().st_mtime, note.parent) for note in self._paths.logs.glob(f"*/{_NOTE}"))
        for index, (ended_s, directory) in enumerate(sorted(notes, reverse=True)):
            if index >= MOST or ended_s < oldest_s:
                self._remove(directory)
        self.of_reservation = {one: kept for one, kept in self.of_reservation.items() if kept[1].exists()}

    def _all(self, pattern: str) -> Iterator[tuple[pb.PastLog, Path]]:
        """Yield what is kept, and what will be as soon as the ranks of a mesh have ended."""
        for note in (*self._paths.meshes.glob(f"*/{_NOTE}"), *self._paths.logs.glob(f"{pattern}/{_NOTE}")):
            with contextlib.suppress(FileNotFoundError):
                past = pb.PastLog.FromString(note.read_bytes())
                if fnmatch(_directory_name(past), pattern):
                    yield past, note.parent

    def of(self, reservation: str) -> list[pb.PastLog]:
        """Return what is kept of reservations of that name, what ended last first."""
        found = [past for past, _ in self._all(f"{quote(reservation, safe='')}-*") if past.reservation == reservation]
        return sorted(found, key=lambda past: past.ended_at, reverse=True)

    def owner_of(self, mesh_id: str) -> str:
        """Return whose the output of a mesh was that has ended; empty when none is kept."""
        return next((past.owner for past, _ in self._all(f"*-{_short(mesh_id)}") if past.mesh.mesh_id == mesh_id), "")

    def logs_of(self, mesh_id: str, state: NodeState) -> tuple[Mesh, Path]:
        """Return a mesh and the directory of its outputs: also of one that has ended, if they are kept.

        Raises:
            MeshNotFound: there is no such mesh (any more), or as `NodeState.mesh`.
        """
        past = None if mesh_id in state.meshes else self.mesh(mesh_id)
        return past or (state.mesh(mesh_id), self._paths.runs(mesh_id))

    def mesh(self, mesh_id: str) -> tuple[Mesh, Path] | None:
        """Return a mesh that has ended, as far as its output needs it, and the directory of its outputs."""
        for past, directory in self._all(f"*-{_short(mesh_id)}"):
            if past.mesh.mesh_id == mesh_id:
                ranks = {rank.rank: RankSlot() for rank in past.mesh.ranks}
                return Mesh(pb.SpawnRequest(mesh_id=mesh_id, name=past.mesh.name), ranks), directory / "runs"
        return None

    def outputs(self) -> list[Path]:
        """Return the directories of outputs that are kept."""
        return [path.parent / "runs" for path in self._paths.logs.glob(f"*/{_NOTE}")]


def take_over(logs: Path, into: Path) -> None:
    """Move what is kept on a node that is no more to another one, which may have a part of the same meshes: each part
    gets an id of its own there.

    Args:
        logs, into: where the two nodes keep it.
    """
    for note in logs.glob(f"*/{_NOTE}"):
        ended_s = note.stat().st_mtime
        past = pb.PastLog.FromString(note.read_bytes())
        past.mesh.mesh_id = uuid.uuid4().hex
        note.write_bytes(past.SerializeToString())
        os.utime(note, (ended_s, ended_s))
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.parent.rename(into / _directory_name(past))


def _directory_name(past: pb.PastLog) -> str:
    return f"{quote(past.reservation, safe='')}-{_short(past.mesh.mesh_id)}"


def _is_printed(runs: Path) -> bool:
    files = (path for output in stored_outputs(runs) for path in (runs / str(output)).iterdir())
    return any(path.suffix in (".out", ".err") and path.stat().st_size for path in files)


def _short(mesh_id: str) -> str:
    return quote(mesh_id[:8], safe="")
