"""How much a node keeps of what ranks print: when it is too much, the oldest goes.

Whole runs that have finished go first, the longest finished first. Where that is not enough, the beginnings of what is
printed now go: of every file as much as makes the longest ones equal, so that the newest lines of each rank stay.

What goes becomes a hole in its file (see monarch_nb.allocator.logs.output).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped, KeptLogs, stored_outputs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import NodePaths, cadence
from monarch_nb.ground.room import lacks_room
from monarch_nb.sizes import bytes_of, size

_log = logging.getLogger(__name__)

SHORTEST_S, LONGEST_S = cadence(1.0), cadence(60.0)
"""Between two looks: sooner when there is little room left."""
FASTEST_BYTES_PER_S = 1e9
"""Ranks of a node hardly print more."""
TRIM_TO = 0.9
"""Of the limit: not every look has to drop something."""
RECOUNT_S = cadence(600.0)
"""Outputs that are over are measured again so often: what a run left behind may still print."""
NEWEST = 16
"""So many outputs of each mesh are measured at every look."""
NEWEST_BYTES = 64 << 10
"""Of what is printed now so much of each file stays, whatever the limit."""
_LONGEST_LINE_BYTES = 1 << 20
_STEP_BYTES = 64 << 10
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01


def default_limit_bytes(directory: Path) -> int:
    """Return what holds when nobody says: $MONARCH_NB_LOG_LIMIT, else 20 GB or a quarter of the disk.

    Raises:
        UsageError: that variable can not be read.
    """
    if given := os.environ.get(config.LOG_LIMIT_VARIABLE):
        return bytes_of(given, f"${config.LOG_LIMIT_VARIABLE}")
    return min(config.LOG_LIMIT_BYTES, shutil.disk_usage(directory).total // 4)


@dataclass(frozen=True)
class StoredFile:
    """One file of a rank's output. `used_bytes` is what it takes on the disk, without what was dropped."""

    files: RankFiles
    kind: str
    size_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class StoredOutput:
    """The files of all ranks of one output. `written_s` is when something was written last."""

    files: tuple[StoredFile, ...]
    finished: bool
    written_s: float

    @property
    def used_bytes(self) -> int:
        return sum(file.used_bytes for file in self.files)


def excess_bytes(used_bytes: int, limit_bytes: int) -> int:
    """Return how much has to be dropped."""
    return used_bytes - round(limit_bytes * TRIM_TO) if used_bytes > limit_bytes else 0


def choose(outputs: Iterable[StoredOutput], limit_bytes: int) -> list[tuple[StoredFile, int]]:
    """Return what has to be dropped: files, and how much is kept of each."""
    outputs = list(outputs)
    excess = excess_bytes(sum(output.used_bytes for output in outputs), limit_bytes)
    if not excess:
        return []
    chosen: list[tuple[StoredFile, int]] = []
    for output in sorted((one for one in outputs if one.finished and one.used_bytes), key=lambda one: one.written_s):
        if excess > 0:
            chosen += _shorten(output.files, output.used_bytes - excess)
            excess -= output.used_bytes
    if excess > 0:
        going_on = [file for output in outputs if not output.finished for file in output.files]
        room_bytes = sum(file.used_bytes for file in going_on) - excess
        chosen += [(file, max(NEWEST_BYTES, kept_bytes)) for file, kept_bytes in _shorten(going_on, room_bytes)]
    return chosen


def _shorten(files: Sequence[StoredFile], room_bytes: int) -> list[tuple[StoredFile, int]]:
    """Return which files have to become shorter to fit, and how long they may be: all equally long."""
    shortest_first = sorted((file for file in files if file.used_bytes), key=lambda file: file.used_bytes)
    room_bytes = max(0, room_bytes)
    for index, file in enumerate(shortest_first):
        share = room_bytes // (len(shortest_first) - index)
        if file.used_bytes > share:
            return [(longer, share) for longer in shortest_first[index:]]
        room_bytes -= file.used_bytes
    return []


class LogLimit:
    """Holds a node to its limit.

    Args:
        meshes: the node's, by id, as they come and go.
        kept: outputs of meshes that have ended.
        limit_bytes: 0 for none.
    """

    def __init__(self, paths: NodePaths, meshes: Mapping[str, Mesh], kept: KeptLogs, limit_bytes: int) -> None:
        self._paths, self._meshes, self._kept = paths, meshes, kept
        self.limit_bytes = limit_bytes
        self._measured: dict[tuple[Path, int], StoredOutput] = {}
        self._measured_s = 0.0
        self._closing = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        if self.limit_bytes:
            self._task = asyncio.get_running_loop().create_task(self._look_after())

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        if self._task is not None:
            self._task.cancel()

    async def _look_after(self) -> None:
        used_bytes = self.limit_bytes
        while True:
            room_s = (self.limit_bytes - used_bytes) / FASTEST_BYTES_PER_S
            await asyncio.sleep(min(LONGEST_S, max(SHORTEST_S, room_s)))
            unfinished: dict[Path, set[int] | None] = {
                self._paths.runs(mesh_id): {run.output for run in mesh.queue} for mesh_id, mesh in self._meshes.items()
            }
            try:
                used_bytes = await asyncio.to_thread(self.sweep, unfinished | dict.fromkeys(self._kept.outputs()))
            except OSError as error:
                _log.warning("the output of ranks can not be limited to %s: %s", size(self.limit_bytes), error)
                if error.errno == errno.EOPNOTSUPP:
                    return
                used_bytes = 0  # not again at once

    def sweep(self, unfinished: Mapping[Path, set[int] | None]) -> int:
        """Drop what is too much; return how much there is then.

        Args:
            unfinished: of each mesh's directory of outputs the ones that runs write to; None: the mesh has ended.
        """
        now_s = time.monotonic()
        if now_s - self._measured_s > RECOUNT_S:
            self._measured.clear()
            self._measured_s = now_s
        outputs: dict[tuple[Path, int], StoredOutput] = {}
        for runs, going_on in unfinished.items():
            stored = stored_outputs(runs)
            can_grow = {*going_on, *stored[-NEWEST:]} if going_on is not None else set()
            for output in stored:
                known = self._measured.get((runs, output))
                if known is None or output in can_grow or not known.finished:
                    known = _measure(runs, output, finished=output not in (going_on or ()))
                outputs[runs, output] = known
        self._measured = outputs
        used_bytes = before_bytes = sum(output.used_bytes for output in outputs.values())
        for file, kept_bytes in choose(outputs.values(), self.limit_bytes):
            if self._closing.is_set():
                break
            self._measured.pop((file.files.runs, file.files.output), None)
            try:
                used_bytes -= self._drop(file, kept_bytes)
            except FileNotFoundError:
                continue  # the mesh was released, or newer runs have taken its place
        if used_bytes < before_bytes:
            dropped = size(before_bytes - used_bytes)
            _log.info("dropped the oldest %s of the output of ranks (limit %s)", dropped, size(self.limit_bytes))
        return used_bytes

    def _drop(self, file: StoredFile, kept_bytes: int) -> int:
        """Drop the beginning of a file; return how much it was."""
        before = file.files.dropped()
        start, left = before.before(file.kind), file.size_bytes - kept_bytes
        if left <= start:
            return 0
        if kept_bytes:
            left = (_mark_after if file.kind == "marks" else _line_after)(file, start, left)
        after = replace(before, limit_bytes=self.limit_bytes, **{file.kind: left})
        is_noted = _note(file.files, after)
        try:
            _punch(file.files.path(file.kind), left, to_the_end=not kept_bytes)
        except OSError:
            file.files.note_dropped(before)
            raise
        if not is_noted:  # there was no room, and now there is
            file.files.note_dropped(after)
        return max(0, file.used_bytes - (file.size_bytes - left))


def _measure(runs: Path, output: int, *, finished: bool) -> StoredOutput:
    files, written_s = [], 0.0
    for path, facts in _entries(runs / str(output)):
        rank, _, kind = path.name.partition(".")
        if kind in ("out", "err", "marks") and rank.isdigit():
            files.append(StoredFile(RankFiles(runs, output, int(rank)), kind, facts.st_size, facts.st_blocks * 512))
            written_s = max(written_s, facts.st_mtime)
    return StoredOutput(tuple(files), finished, written_s)


def _entries(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield Path(entry.path), entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # the mesh was released


def _note(files: RankFiles, dropped: Dropped) -> bool:
    """Note what is about to be dropped; readers look there when they find a hole. False: the disk is full."""
    try:
        files.note_dropped(dropped)
    except OSError as error:
        if not lacks_room(error):
            raise
        return False
    return True


def _line_after(file: StoredFile, _: int, target: int) -> int:
    """Return where the first line begins after an offset; of a very long line what comes goes, too."""
    position, end = target, min(file.size_bytes, target + _LONGEST_LINE_BYTES)
    while position < end and (data := file.files.read(file.kind, position, position + _STEP_BYTES)):
        if (newline := data.find(b"\n")) >= 0:
            return position + newline + 1
        position += len(data)
    return target


def _mark_after(file: StoredFile, start: int, target: int) -> int:
    """Return where the first mark begins after an offset; marks are found from the one at `start` on."""
    data, data_start = b"", start
    while start < target:
        offset = start - data_start
        if offset + 4 > len(data):
            data = file.files.read(file.kind, start, start + _STEP_BYTES)
            data_start, offset = start, 0
            if len(data) < 4:
                break
        start += 4 + int.from_bytes(data[offset : offset + 4])
    return min(start, file.size_bytes)


def _punch(path: Path, left: int, *, to_the_end: bool) -> None:
    """Make a hole of everything before an offset; raises OSError when the file system can not. When something was
    written last stays known: by that the oldest is found."""
    length = left + (1 << 16) if to_the_end else left  # past the end its last block goes, too
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with path.open("r+b") as file:
        facts = os.fstat(file.fileno())
        if libc.fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, 0, length):
            why = f"its file system makes no holes in files ({os.strerror(ctypes.get_errno())})"
            raise OSError(ctypes.get_errno(), why, path)
        os.utime(file.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
