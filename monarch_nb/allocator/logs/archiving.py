"""Old outputs go into the archive of their mesh, so that a node has a bounded number of files.

What a run has started may write when the run is long over. So an output stays in its files for as long as any process
has one of them open for writing, which the kernel knows: it grants a lease for reading only on a file that nobody has
open so. A rank that may still write to an output has one of its files open
(monarch_nb.worker.shell.streams).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from monarch_nb.allocator.logs.archive import PIECE_BYTES, Archive, Archives, Entry, Piece, lines_in
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped, stored_outputs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import NodePaths

_log = logging.getLogger(__name__)

NEWEST = 16
"""So many outputs of each mesh stay in their files: what is followed is among them."""
AT_ONCE = 32
"""So many runs are waited for before something is archived."""
MOST_WAITING = 64
"""When so many have come to an end while others are archived, each that ends has two archived before anything else."""
MOST_BYTES = 16 << 20
"""A rank's output that is larger stays in its files: the limit holds the number of these down."""
_KINDS = ("out", "err", "marks")
_NOTES = ("run", "dropping", "dropped")


@dataclass(frozen=True)
class Outputs:
    """Which outputs of a mesh may be archived.

    Attributes:
        runs, archive: where they lie, and where they go.
        busy: runs write to these, or will.
        known: the numbers of the runs that the node remembers, by output and rank.
    """

    runs: Path
    archive: Archive
    busy: frozenset[int]
    known: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, mesh: Mesh, runs: Path, archive: Archive) -> Outputs:
        """Return those of a mesh as it is now."""
        busy = {run.output for run in mesh.queue} | {slot.untouched for slot in mesh.ranks.values()}
        known = {(run.output, rank): run.number for run in mesh.runs.values() for rank in run.ranks}
        return cls(runs, archive, frozenset(busy), known)


class Archiving:
    """Archives the old outputs of a node's meshes, in the background.

    Args:
        meshes: by id, as they come and go.
        moving: held while files move into the archive.
    """

    def __init__(
        self, paths: NodePaths, meshes: Mapping[str, Mesh], archives: Archives, moving: threading.Lock
    ) -> None:
        self._paths, self._meshes, self._archives, self._moving = paths, meshes, archives, moving
        self._finished: dict[str, int] = {}
        self._due = asyncio.Event()
        self._closing = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    def start(self) -> None:
        """Archive from now on, first what the allocator before this one has left."""
        self._finished = dict.fromkeys(self._meshes, AT_ONCE)
        self._due.set()
        self._task = asyncio.get_running_loop().create_task(self._work())

    def run_finished(self, mesh_id: str) -> None:
        """A mesh has another output that is over."""
        self._finished[mesh_id] = self._finished.get(mesh_id, 0) + 1
        if self._finished[mesh_id] >= AT_ONCE:
            self._due.set()
        if self._finished[mesh_id] > MOST_WAITING and not self._trouble:
            with self._noting_trouble():
                self._finished[mesh_id] -= self.archive(self._outputs(self._meshes[mesh_id]), newest=2)

    def close(self) -> None:
        """Archive no more."""
        self._closing.set()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            for mesh_id in [mesh_id for mesh_id, runs in self._finished.items() if runs >= AT_ONCE]:
                del self._finished[mesh_id]
                if mesh := self._meshes.get(mesh_id):
                    with self._noting_trouble():
                        await asyncio.to_thread(self.archive, self._outputs(mesh))

    def _outputs(self, mesh: Mesh) -> Outputs:
        runs = self._paths.runs(mesh.spec.mesh_id)
        return Outputs.of(mesh, runs, self._archives.of(runs))

    @contextlib.contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        """Go on when the disk is full or the file system has no leases; say so once."""
        try:
            yield
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                _log.warning("the output of old runs stays in its files: %s", error)
            self._trouble = str(error)

    def archive(self, outputs: Outputs, newest: int = 0) -> int:
        """Archive what may be archived; return of how many outputs nothing is left.

        Args:
            newest: only so many, those that have come to an end last; 0 for all, oldest first.

        Raises:
            OSError: the disk is full, or the file system does not let us.
        """
        gone = 0
        for output in stored_outputs(outputs.runs)[:-NEWEST][-newest:]:
            if output in outputs.busy:
                continue
            directory = outputs.runs / str(output)
            for rank in _ranks(directory):
                if self._closing.is_set():
                    return gone
                files = RankFiles(outputs.runs, output, rank, outputs.archive)
                with self._moving:
                    put_away(files, outputs.archive, outputs.known)
            with contextlib.suppress(OSError):  # some of it is still written
                directory.rmdir()
                gone += 1
        return gone


def _ranks(directory: Path) -> list[int]:
    """Return the ranks that have files there."""
    try:
        return sorted({int(name.partition(".")[0]) for name in os.listdir(directory)})
    except FileNotFoundError:  # the mesh was released
        return []


def put_away(files: RankFiles, archive: Archive, known: Mapping[tuple[int, int], int]) -> bool:
    """Move what a rank wrote in an output into the archive, unless it is very much or somebody may still write there.

    Args:
        known: the numbers of the runs that the node remembers, by output and rank.

    Returns:
        Whether its files are gone.
    """
    base = str(files.path(""))
    with ExitStack() as stack:
        opened: dict[str, BinaryIO] = {}
        for kind in _KINDS:
            with contextlib.suppress(FileNotFoundError):
                opened[kind] = stack.enter_context(open(base + kind, "rb", buffering=0))
        # Held until the files are gone: whoever would open one now waits so long.
        if not all(_lease(file.fileno()) for file in opened.values()):
            return False
        facts = {kind: os.fstat(file.fileno()) for kind, file in opened.items()}
        sizes = {kind: facts[kind].st_size if kind in facts else 0 for kind in _KINDS}
        dropped = files.dropped()
        left = {kind: max(0, size_bytes - dropped.before(kind)) for kind, size_bytes in sizes.items()}
        if sum(left.values()) > MOST_BYTES:
            return False
        if any(sizes.values()) and files.archived() is None:  # else the allocator before this one was killed here
            pieces = {kind: list(_pieces(kind, file, dropped)) for kind, file in opened.items()}
            entry = Entry(
                output=files.output,
                rank=files.rank,
                number=files.run_number(known),
                written_s=max(one.st_mtime for one in facts.values()),
                used_bytes=sum(left.values()),
                **sizes,
                out_lines=_lines(pieces.get("out", []), dropped.out),
                err_lines=_lines(pieces.get("err", []), dropped.err),
                dropped=dropped.to_json() if dropped != Dropped() else "",
            )
            archive.add(entry, [piece for some in pieces.values() for piece in some])
        for kind in (*opened, *_NOTES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(base + kind)
    return True


def _lease(descriptor: int) -> bool:
    """Take a lease on a file, which ends when it is closed; False: somebody has it open for writing."""
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # when somebody wants to write: ignored, as SIGIO is not
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return False
    return True


def _pieces(kind: str, file: BinaryIO, dropped: Dropped) -> Iterator[Piece]:
    start = dropped.before(kind)
    file.seek(start)
    while body := file.read(PIECE_BYTES):
        yield kind, start, body
        start += len(body)


def _lines(pieces: list[Piece], dropped_bytes: int) -> int:
    return (dropped_bytes > 0) + lines_in(body for _, _, body in pieces)
