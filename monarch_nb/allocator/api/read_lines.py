"""`WatchLog`, `ReadLines`, `SearchLog` and `ReadMetrics`: any line of what ranks wrote and the numbers in it, however
much it is, also while they write."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from monarch_nb.allocator.logs.index import Line, RankIndex, digests
from monarch_nb.allocator.logs.metrics import MetricsReader
from monarch_nb.allocator.logs.output import MeshLogs, RankFiles, Written
from monarch_nb.allocator.logs.search import Lines, Searcher
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.runs.sessions import FLOOD_INTERVAL_S, UNWATCHED_INTERVAL_S
from monarch_nb.allocator.state.runs import Run, failed_results
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import cadence, gap
from monarch_nb.lines.templates import FoldBy
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_log = logging.getLogger(__name__)

KEPT_S = gap(300.0)
"""An index that nobody has used for so long is forgotten."""
COUNTING_S = cadence(0.1)
"""What takes longer to count is told piece by piece."""
_FOLLOWED_OUTPUTS = 16
"""The newest: what older runs may still write is not worth a watch each."""
_REPLY_BYTES = 4 << 20
_LINE_BYTES = 64
"""What a line costs in a reply besides its text."""
_DIGESTS_STEP_BYTES = 256 << 10
_FOLDS: dict[int, FoldBy] = {
    pb.LOG_FOLD_UNSPECIFIED: "equal",
    pb.LOG_FOLD_TIMES: "times",
    pb.LOG_FOLD_NUMBERS: "numbers",
}


class LogLines:
    """The indices of a node's logs. They are made when somebody looks, and forgotten when nobody does any more."""

    def __init__(self, node: Node) -> None:
        self._paths, self._state, self._watch, self._kept = node.paths, node.state, node.watch, node.kept_logs
        self._loop = asyncio.get_running_loop()
        self._indices: dict[str, dict[tuple[int, int], RankIndex]] = {}
        """By mesh; by output and rank."""
        self._of_runs: dict[tuple[str, int, int], RankIndex] = {}
        """The same by mesh, number of the run and rank."""
        self._forget_timer: asyncio.TimerHandle | None = None
        self._searcher = Searcher()
        self._metrics = MetricsReader()

    # ---- how many there are ----

    async def watch(self, request: pb.WatchLogRequest) -> AsyncGenerator[pb.LogChange, None]:
        """Yield what there is, as it is counted, and with `follow` then what changes, a few times a second.

        Raises:
            MeshNotFound: there is no such mesh (any more).
        """
        told = _Told(request, self._state)
        changed = asyncio.Event()
        runs = self._paths.runs(request.mesh_id)
        outputs: list[int] | None = None
        try:
            while True:
                self._state.mesh(request.mesh_id)
                changed.clear()
                newest = stored_outputs(runs)[-_FOLLOWED_OUTPUTS:]
                for directory in (runs, *(runs / str(output) for output in newest)) if request.follow else ():
                    self._watch.arm(directory, changed.set)
                async with contextlib.aclosing(self._changes(request, outputs, newest, told)) as changes:
                    async for change in changes:
                        yield change
                outputs = newest
                if not request.follow:
                    return
                with contextlib.suppress(TimeoutError):  # no change of a file tells that a run has finished
                    async with asyncio.timeout(UNWATCHED_INTERVAL_S):
                        await changed.wait()
                await asyncio.sleep(FLOOD_INTERVAL_S)
        finally:
            self._watch.disarm(changed.set)

    async def _changes(
        self, request: pb.WatchLogRequest, outputs: list[int] | None, newest: list[int], told: _Told
    ) -> AsyncGenerator[pb.LogChange, None]:
        """Yield what is new: of all outputs when `outputs` is None, else of these and the newest."""
        counted_s = self._loop.time()
        change = pb.LogChange()
        finished = told.finished_runs()  # before it is counted: what finishes meanwhile may have printed more
        async for part in self._counted(request, None if outputs is None else {*outputs, *newest}):
            told.add_part(change, part)
            if change.parts and self._loop.time() - counted_s > COUNTING_S:
                yield change
                change, counted_s = pb.LogChange(), self._loop.time()
        change.complete = True
        told.add_runs(change, finished)
        if outputs is None or change.parts or change.runs:
            yield change

    async def _counted(
        self, request: pb.WatchLogRequest, outputs: Iterable[int] | None = None
    ) -> AsyncIterator[pb.LogPart]:
        """Count what was written and is asked for, in all outputs or in some; yield it run after run."""
        for number, files in self._written(request, outputs):
            await asyncio.sleep(0)
            index = self._indices.get(request.mesh_id, {}).get((files.output, files.rank))
            if index := index or self._new_index(request.mesh_id, number, files):
                yield (await self._extended(index)).part

    def _written(self, request: pb.WatchLogRequest, outputs: Iterable[int] | None = None) -> list[Written]:
        logs = MeshLogs(self._state.mesh(request.mesh_id), self._paths.runs(request.mesh_id))
        return logs.written(logs.ranks(request.ranks), request.number, outputs)

    def _new_index(self, mesh_id: str, number: int, files: RankFiles) -> RankIndex | None:
        """Return an index of what a rank wrote in a run; None when that is nothing."""
        index = RankIndex(files, number)
        if not index.is_behind():
            return None
        self._indices.setdefault(mesh_id, {})[files.output, files.rank] = index
        self._of_runs[mesh_id, number, files.rank] = index
        self._forget_later()
        return index

    async def _extended(self, index: RankIndex) -> RankIndex:
        """Count what was written. A log that can not be read ends where it was last."""
        index.used_s = self._loop.time()
        try:
            await index.extend()
        except OSError as error:
            _log.warning("the log of rank %d in run %d can not be read: %s", index.files.rank, index.number, error)
        return index

    def _forget_later(self) -> None:
        if self._forget_timer is None:
            self._forget_timer = self._loop.call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._forget_timer = None
        unused_s = self._loop.time() - KEPT_S
        for mesh_id, indices in list(self._indices.items()):
            is_gone = mesh_id not in self._state.meshes
            for key in [key for key, index in indices.items() if is_gone or index.used_s <= unused_s]:
                index = indices.pop(key)
                self._of_runs.pop((mesh_id, index.number, index.files.rank), None)
            if not indices:
                del self._indices[mesh_id]
        if self._indices:
            self._forget_later()

    async def _index(self, mesh_id: str, window: pb.LogWindow) -> RankIndex | None:
        """Return the index of what a rank wrote in a run; None when that is nothing."""
        self._state.mesh(mesh_id)
        if known := self._of_runs.get((mesh_id, window.number, window.rank)):
            return await self._extended(known)
        request = pb.WatchLogRequest(mesh_id=mesh_id, ranks=[window.rank], number=window.number)
        for number, files in self._written(request):
            if index := self._new_index(mesh_id, number, files):
                return await self._extended(index)
        return None

    # ---- lines ----

    async def read(self, request: pb.ReadLinesRequest) -> pb.ReadLinesReply:
        """Return lines, or their digests, as many as fit in a reply."""
        reply = pb.ReadLinesReply()
        room_bytes = _REPLY_BYTES
        for window in request.windows:
            lines = reply.windows.add()
            index = await self._index(request.mesh_id, window)
            if index is None:
                continue
            wanted = min(window.count, max(0, index.lines(request.stream) - window.first))
            if room_bytes < _REPLY_BYTES // 4:  # else a long line would be cut too early
                lines.cut = wanted > 0
            elif request.digests:
                last = window.first + min(wanted, room_bytes // 8)
                by = _FOLDS[request.fold]
                lines.digests = await _digests(index, request.stream, window.first, last, by)
                room_bytes -= len(lines.digests)
                lines.cut = len(lines.digests) < 8 * wanted
            else:
                last = window.first + min(wanted, room_bytes // _LINE_BYTES)
                for kind, text, size_bytes in await index.read(request.stream, window.first, last, room_bytes):
                    shown = _cut(text, request.max_line_bytes or _REPLY_BYTES)
                    lines.lines.add(stderr=kind == "err", text=shown, size_bytes=size_bytes)
                    room_bytes -= len(shown) + _LINE_BYTES
                lines.cut = len(lines.lines) < wanted
        return reply

    # ---- search ----

    async def search(self, request: pb.SearchLogRequest) -> pb.SearchLogReply:
        """Return which lines hold a text or match a regular expression.

        Raises:
            UsageError: it is no regular expression.
            MonarchNbError: it takes too long.
        """
        windows: list[list[tuple[RankIndex, str]]] = []
        wanted: list[Lines] = []
        for window in request.windows:
            searched: list[tuple[RankIndex, str]] = []
            if index := await self._index(request.mesh_id, window):
                index.look_for_dropped()
                ranges = index.ranges(request.stream, window.first, window.first + window.count)
                for kind, (first, last) in ranges.items():
                    stream = index.streams[kind]
                    start, end = await stream.start(first), await stream.start(last)
                    wanted.append(Lines(str(index.files.path(kind)), start, end, max(first, stream.dropped_lines)))
                    searched.append((index, kind))
            windows.append(searched)
        options = {"regex": request.regex, "ignore_case": request.ignore_case}
        found = iter(await self._searcher.search(request.text, wanted, **options))
        reply = pb.SearchLogReply()
        for searched in windows:
            reply.windows.append(_numbered(searched, request.stream, found))
            await asyncio.sleep(0)
        return reply

    # ---- numbers ----

    async def metrics(self, request: pb.ReadMetricsRequest) -> pb.ReadMetricsReply:
        """Return the numbers that lines of a run have beside names, also of a mesh that has ended.

        Raises:
            MonarchNbError: it takes too long, or too much memory.
        """
        mesh, runs = self._kept.logs_of(request.mesh_id, self._state)
        run = next((run for run in mesh.runs.values() if run.number == request.number), None)
        is_over = run is None or bool(run.finished)  # before it is looked what there is
        logs = MeshLogs(mesh, runs)
        written = [files for _, files in logs.written(logs.ranks(request.ranks), request.number)]
        lead = request.ranks[0] if request.ranks else 0
        written.sort(key=lambda files: (files.rank != lead, files.rank))
        return await self._metrics.read(request, runs, written, is_over=is_over)

    async def close(self) -> None:
        """End what goes on."""
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        await self._searcher.close()
        await self._metrics.close()


class _Told:
    """What a watcher knows already."""

    def __init__(self, request: pb.WatchLogRequest, state: NodeState) -> None:
        self._mesh_id, self._number, self._state = request.mesh_id, request.number, state
        self._parts: dict[tuple[int, int], pb.LogPart] = {}
        self._runs: dict[int, pb.LogRun] = {}
        self._ended: set[int] = set()
        """Runs that were looked at when they had finished."""

    def add_part(self, change: pb.LogChange, part: pb.LogPart) -> None:
        """Tell of a part, if it is news."""
        if part.size_bytes and self._parts.get((part.number, part.rank)) != part:
            self._parts[part.number, part.rank] = part
            self._runs.setdefault(part.number, pb.LogRun())
            change.parts.append(part)

    def finished_runs(self) -> set[int]:
        """Return the numbers of the runs that have finished and that the node remembers."""
        return {run.number for run in self._remembered() if run.finished}

    def _remembered(self) -> Iterable[Run]:
        return self._state.mesh(self._mesh_id).runs.values()

    def add_runs(self, change: pb.LogChange, finished: set[int]) -> None:
        """Tell of the runs that have lines, if there is news of them; of those in `finished` that there is no more.

        A run that has failed is told of although it has no line.
        """
        known = {run.number: run for run in self._remembered()}
        for number in sorted(finished - self._ended):
            if number in known and self._number in (0, number) and any(True for _ in failed_results(known[number])):
                self._runs.setdefault(number, pb.LogRun())
        self._ended |= finished
        for number, told in self._runs.items():
            if told.finished:
                continue
            run = known.get(number)
            now = pb.LogRun(number=number, finished=run is None or number in finished)
            if run is not None:
                now.title, now.cell_number = run.submit.title, run.cell_number
                now.notebook = run.submit.notebook
                now.failures.extend(failed_results(run) if now.finished else ())
            elif told.number:
                continue  # the node has forgotten it
            if now != told:
                told.CopyFrom(now)
                change.runs.append(now)


def _numbered(
    searched: list[tuple[RankIndex, str]], stream: pb.LogStream.ValueType, found: Iterator[array[int]]
) -> bytes:
    """Return the numbers of lines that were found in a window, in order."""
    numbers = array("Q")
    for index, kind in searched:
        of_stream = next(found)
        if not stream:
            of_stream = index.number_both(kind, of_stream)
        is_between = numbers and of_stream and numbers[-1] > of_stream[0]
        numbers.extend(of_stream)
        if is_between:
            numbers = array("Q", sorted(numbers))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _cut(text: bytes, most_bytes: int) -> bytes:
    """Return the beginning of a long text, whole characters of UTF-8."""
    if len(text) <= most_bytes:
        return text
    while most_bytes and text[most_bytes] & 0xC0 == 0x80:
        most_bytes -= 1
    return text[:most_bytes]


async def _digests(index: RankIndex, stream: pb.LogStream.ValueType, first: int, last: int, by: FoldBy) -> bytes:
    pieces: list[bytes] = []
    while first < last:
        lines: list[Line] = await index.read(stream, first, last, _DIGESTS_STEP_BYTES)
        if not lines:
            break
        pieces.append(digests(lines, by))
        first += len(lines)
    return b"".join(pieces)
