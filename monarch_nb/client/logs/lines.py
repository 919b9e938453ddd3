"""Any line of what the ranks of a mesh wrote, by its number, from all nodes. Everything here runs on the background
loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, TypeVar

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.decoding import result_event
from monarch_nb.client.connections.events import Stream
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, RankFailure
from monarch_nb.lines.templates import FoldBy
from monarch_nb.proto import allocator_pb2 as pb

T = TypeVar("T")
Streams = Literal["both", "stdout", "stderr"]

RETRY_S = cadence(1.0)
_STREAMS = {
    "both": pb.LOG_STREAM_UNSPECIFIED,
    "stdout": pb.LOG_STREAM_STDOUT,
    "stderr": pb.LOG_STREAM_STDERR,
}

_FOLDS: dict[FoldBy, pb.LogFold.ValueType] = {
    "numbers": pb.LOG_FOLD_NUMBERS,
    "times": pb.LOG_FOLD_TIMES,
    "equal": pb.LOG_FOLD_UNSPECIFIED,
    "off": pb.LOG_FOLD_UNSPECIFIED,
}


@dataclass(frozen=True, slots=True)
class LogPart:
    """How much a rank has written in a run.

    Attributes:
        size_bytes: of everything; it changes also when the newest line of a stream grows.
    """

    run: int
    rank: int
    stdout_lines: int
    stderr_lines: int
    size_bytes: int

    def lines(self, streams: Streams = "both") -> int:
        """How many lines there are in a stream, or in both."""
        return (self.stdout_lines if streams != "stderr" else 0) + (self.stderr_lines if streams != "stdout" else 0)


@dataclass(frozen=True, slots=True)
class LogRun:
    """A run that has printed something, or failed.

    Attributes:
        title: the first line of its code; empty when its nodes have forgotten it.
        cell_number: of the notebook's cell; 0 when there is none.
        finished: on every node that told of it.
        notebook: path of the notebook that it comes from; empty when that is not known.
        failures: why it failed, by rank, as far as it has finished.
    """

    number: int
    title: str
    cell_number: int
    finished: bool
    notebook: str = ""
    failures: tuple[RankFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class LogChange:
    """What is new in a log, or has changed.

    Attributes:
        complete: all there was is counted.
        silent: the nodes that do not answer.
    """

    parts: tuple[LogPart, ...] = ()
    runs: tuple[LogRun, ...] = ()
    complete: bool = False
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogWindow:
    """Some lines of what a rank wrote in a run: `count` of them from number `first` on."""

    run: int
    rank: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or the beginning of a very long one.

    Attributes:
        text: without its line end; escape codes are kept.
        size_bytes: of the whole line.
    """

    stream: Stream
    text: str
    size_bytes: int


class LogLines:
    """The lines that the ranks of a mesh wrote.

    Lines are numbered from 0 for each run and rank, in one stream or in both. In both they are in the order in which
    they began. Numbers never change: lines are only added, and only the newest line of a stream can still grow.

    Args:
        connections: to the mesh's nodes that answer, by node rank.
        ranks_per_node: of the mesh.
    """

    def __init__(self, mesh_id: str, connections: Mapping[int, Connection], ranks_per_node: int) -> None:
        self.mesh_id, self._connections, self._ranks_per_node = mesh_id, connections, ranks_per_node

    @classmethod
    def of(cls, held: HeldReservation, mesh_id: str) -> LogLines:
        """Return those of a mesh of a reservation, as the pool told of it."""
        connections = {node: connection for node, (connection, _) in held.nodes.items()}
        return cls(mesh_id, connections, held.shape.per_node)

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node; empty when it has not answered yet."""
        connection = self._connections.get(rank // self._ranks_per_node)
        return connection.name if connection else ""

    # ---- how many there are ----

    async def watch(
        self, ranks: Iterable[int] | None = None, run: int | None = None, *, follow: bool = True
    ) -> AsyncGenerator[LogChange, None]:
        """Yield how many lines there are, as they are counted, then what changes: a few times a second at most.

        Args:
            ranks, run: only these.
            follow: go on until the caller does not want more; a node that does not answer is asked again and again.

        Raises:
            MeshNotFound: the mesh was released.
        """
        by_node = self._by_node(ranks)
        queue: asyncio.Queue[tuple[Connection, pb.LogChange | MonarchNbError | None]] = asyncio.Queue(len(by_node))
        tasks = []
        for connection, on_node in by_node.items():
            request = pb.WatchLogRequest(mesh_id=self.mesh_id, ranks=on_node, number=run or 0, follow=follow)
            tasks.append(asyncio.create_task(_pump(connection, request, queue)))
        merged = _Merged()
        try:
            going_on = set(by_node)
            counting = set(by_node)
            while going_on:
                connection, news = await queue.get()
                if isinstance(news, NodeUnreachable):
                    merged.silent.add(connection.name)
                    counting.discard(connection)
                    if not follow:
                        going_on.discard(connection)
                elif isinstance(news, MonarchNbError):
                    raise news
                elif news is None:
                    going_on.discard(connection)
                    continue
                else:
                    merged.silent.discard(connection.name)
                    if news.complete:
                        counting.discard(connection)
                    merged.add(connection, news)
                if change := merged.change(complete=not counting):
                    yield change
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _by_node(self, ranks: Iterable[int] | None) -> dict[Connection, list[int]]:
        """Return the nodes and which of their ranks are wanted; none: all."""
        if ranks is None:
            return {connection: [] for connection in self._connections.values()}
        by_node: dict[Connection, list[int]] = {}
        for rank in ranks:
            if connection := self._connections.get(rank // self._ranks_per_node):
                by_node.setdefault(connection, []).append(rank)
        return by_node

    # ---- lines ----

    async def read(
        self, windows: Sequence[LogWindow], streams: Streams = "both", *, max_line_bytes: int = 8192
    ) -> list[list[LogLine]]:
        """Return the lines of each window; at the end of the log they are fewer.

        Args:
            max_line_bytes: longer lines are cut.

        Raises:
            NodeUnreachable: the node of one of the ranks does not answer.
            MeshNotFound: the mesh was released.
        """
        lines: list[list[LogLine]] = [[] for _ in windows]

        def keep(window: int, told: pb.LogLines) -> int:
            lines[window] += [_line(line) for line in told.lines]
            return len(told.lines)

        request = pb.ReadLinesRequest(mesh_id=self.mesh_id, stream=_STREAMS[streams], max_line_bytes=max_line_bytes)
        await self._on_nodes(windows, lambda connection, which: _read(connection, request, windows, which, keep))
        return lines

    async def digests(
        self, windows: Sequence[LogWindow], streams: Streams = "both", by: FoldBy = "equal"
    ) -> list[array[int]]:
        """Return a number for each line of each window: equal where stream and text are equal, whatever the rank.

        Two different lines have equal numbers once in 2**50 or so.

        Args:
            by: in what lines may differ that have equal numbers. Nodes of an earlier version know of no such lines.

        Raises:
            NodeUnreachable: the node of one of the ranks does not answer.
            MeshNotFound: the mesh was released.
        """
        digests = [array("Q") for _ in windows]

        def keep(window: int, told: pb.LogLines) -> int:
            digests[window].extend(_unpack(told.digests))
            return len(told.digests) // 8

        request = pb.ReadLinesRequest(mesh_id=self.mesh_id, stream=_STREAMS[streams], digests=True)
        request.fold = _FOLDS[by]
        await self._on_nodes(windows, lambda connection, which: _read(connection, request, windows, which, keep))
        return digests

    async def search(
        self,
        text: str,
        windows: Sequence[LogWindow],
        streams: Streams = "both",
        *,
        regex: bool = False,
        ignore_case: bool = False,
    ) -> list[array[int]]:
        """Return the numbers of the lines that hold a text, in order, for each window. Cancelling it stops it.

        Args:
            text: what to look for in the lines, as they are without escape codes.
            regex: it is a regular expression of Python's.

        Raises:
            UsageError: it is no regular expression.
            MonarchNbError: the search takes too long.
            NodeUnreachable: the node of one of the ranks does not answer.
            MeshNotFound: the mesh was released.
        """
        found = [array("Q") for _ in windows]

        async def search(connection: Connection, which: list[int]) -> None:
            request = pb.SearchLogRequest(
                mesh_id=self.mesh_id,
                stream=_STREAMS[streams],
                windows=[_window(windows[each]) for each in which],
                text=text,
                regex=regex,
                ignore_case=ignore_case,
            )
            reply = await connection.unary("SearchLog", request, patience(40.0))
            for each, packed in zip(which, reply.windows, strict=True):
                found[each] = _unpack(packed)

        await self._on_nodes(windows, search)
        return found

    async def _on_nodes(
        self, windows: Sequence[LogWindow], ask: Callable[[Connection, list[int]], Awaitable[None]]
    ) -> None:
        """Ask each node about those of the windows that are of its ranks."""
        by_node: dict[Connection, list[int]] = {}
        for position, window in enumerate(windows):
            connection = self._connections.get(window.rank // self._ranks_per_node)
            if connection is None:
                raise NodeUnreachable(f"the node of rank {window.rank} does not answer")
            by_node.setdefault(connection, []).append(position)
        async with _first_error(), asyncio.TaskGroup() as group:
            for connection, which in by_node.items():
                group.create_task(_awaited(ask(connection, which)))


class _Merged:
    """What the nodes told, put together, as far as it was not yielded.

    Attributes:
        silent: names of the nodes that do not answer.
    """

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self._parts: dict[tuple[int, int], LogPart] = {}
        self._news: dict[tuple[int, int], LogPart] = {}
        self._runs: dict[int, dict[Connection, LogRun]] = {}
        self._told_runs: dict[int, LogRun] = {}
        self._last = LogChange()

    def add(self, connection: Connection, change: pb.LogChange) -> None:
        """Take in what a node says; one that was away says everything again."""
        for told in change.parts:
            part = LogPart(told.number, told.rank, told.stdout_lines, told.stderr_lines, told.size_bytes)
            known = self._parts.get((part.run, part.rank))
            if known is None or known.size_bytes < part.size_bytes:
                self._parts[part.run, part.rank] = self._news[part.run, part.rank] = part
        for run in change.runs:
            results = (result_event(packed, connection.name) for packed in run.failures)
            failures = tuple(filter(None, (result.failure for result in results)))
            told_run = LogRun(run.number, run.title, run.cell_number, run.finished, run.notebook, failures)
            self._runs.setdefault(run.number, {})[connection] = told_run

    def change(self, *, complete: bool) -> LogChange | None:
        """Return what is new since the last one, if anything is."""
        runs = []
        for number, by_node in self._runs.items():
            titled = max(by_node.values(), key=lambda run: bool(run.title))
            failures = sorted(
                chain.from_iterable(each.failures for each in by_node.values()), key=lambda each: each.rank
            )
            finished = all(each.finished for each in by_node.values())
            run = replace(titled, finished=finished, failures=tuple(failures))
            if self._told_runs.get(number) != run:
                self._told_runs[number] = run
                runs.append(run)
        change = LogChange(tuple(self._news.values()), tuple(runs), complete, tuple(sorted(self.silent)))
        self._news.clear()
        last, self._last = self._last, replace(change, parts=(), runs=())
        return change if change.parts or change.runs or self._last != last else None


async def _pump(
    connection: Connection,
    request: pb.WatchLogRequest,
    queue: asyncio.Queue[tuple[Connection, pb.LogChange | MonarchNbError | None]],
) -> None:
    """Put what a node says into the queue; at the end None, or why there is no more."""
    while True:
        try:
            async with contextlib.aclosing(connection.stream("WatchLog", request)) as changes:
                async for change in changes:
                    await queue.put((connection, change))
        except NodeUnreachable as error:
            await queue.put((connection, error))
            if not request.follow:
                return
            await asyncio.sleep(RETRY_S)
        except MonarchNbError as error:
            await queue.put((connection, error))
            return
        else:
            await queue.put((connection, None))
            return


async def _read(
    connection: Connection,
    request: pb.ReadLinesRequest,
    windows: Sequence[LogWindow],
    which: Iterable[int],
    keep: Callable[[int, pb.LogLines], int],
) -> None:
    """Ask a node until it has told everything; `keep` takes what it tells of a window and returns how many lines."""
    wanted = {each: _window(windows[each]) for each in which}
    while wanted:
        asked = pb.ReadLinesRequest(windows=wanted.values())
        asked.MergeFrom(request)
        reply: pb.ReadLinesReply = await connection.unary("ReadLines", asked)
        for each, told in zip(list(wanted), reply.windows, strict=True):
            kept = keep(each, told)
            wanted[each].first += kept
            wanted[each].count -= kept
            if not told.cut:
                del wanted[each]


def _window(window: LogWindow) -> pb.LogWindow:
    return pb.LogWindow(number=window.run, rank=window.rank, first=window.first, count=window.count)


def _line(line: pb.LogLine) -> LogLine:
    text = line.text.decode(errors="backslashreplace")
    return LogLine("stderr" if line.stderr else "stdout", text, line.size_bytes)


def _unpack(packed: bytes) -> array[int]:
    numbers = array("Q", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


async def _awaited(work: Awaitable[Any]) -> None:
    await work


@contextlib.asynccontextmanager
async def _first_error() -> AsyncGenerator[None, None]:
    """Raise the first of a group of errors by itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
