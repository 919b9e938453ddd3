"""Log records, merged from the nodes, also of reservations that were released."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.events import Stream
from monarch_nb.client.logs.metrics import RunMetrics
from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.pools.infos import RunInfo, run_infos
from monarch_nb.client.pools.pool import STATUS_TIMEOUT_S, Pool, pool_named
from monarch_nb.config import MAIN_MESH, cadence
from monarch_nb.errors import MeshNotFound, MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import Extent, parse_targets

T = TypeVar("T")

_MAX_WAITING_BATCHES = 64


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line that a rank wrote (a very long line comes in pieces).

    Attributes:
        run: the number of the run that wrote it.
        text: with its line end, if it has one.
    """

    rank: int
    stream: Stream
    run: int
    text: str


def read_logs(connections: list[tuple[Connection, pb.ReadLogsRequest]]) -> Iterator[LogRecord]:
    """Yield the nodes' records; with several nodes merged by run."""
    sources = [_records(connection.stream("ReadLogs", request)) for connection, request in connections]
    return heapq.merge(*sources, key=lambda record: record.run)


def follow_logs(connections: list[tuple[Connection, pb.ReadLogsRequest]]) -> Iterator[list[LogRecord]]:
    """Yield what the nodes' ranks wrote and go on to write: lists of what came at a time, in whole lines.

    Ends when every node has said that no more comes. Ctrl-C ends it.
    """
    queue: asyncio.Queue[pb.LogRecords | MonarchNbError | None] = asyncio.Queue(_MAX_WAITING_BATCHES)
    sources = [connection.stream("ReadLogs", request) for connection, request in connections]
    tasks = call(_start([_pump(source, queue) for source in sources]), undo=_cancel)
    unfinished: dict[tuple[int, Stream, int], str] = {}
    try:
        going_on = len(tasks)
        while going_on:
            whole: list[LogRecord] = []
            for batch in call(_together(queue)):
                if isinstance(batch, MonarchNbError):
                    raise batch
                if batch is None:
                    going_on -= 1
                    continue
                for record in _decoded(batch):
                    key = (record.rank, record.stream, record.run)
                    text = unfinished.pop(key, "") + record.text
                    if text.endswith("\n"):
                        whole.append(replace(record, text=text))
                    else:
                        unfinished[key] = text
            if whole:
                yield sorted(whole, key=lambda record: record.run)
        if unfinished:
            yield [LogRecord(rank, stream, run, text) for (rank, stream, run), text in unfinished.items()]
    finally:
        for task in tasks:
            post(task.cancel)


async def _start(pumps: list[Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(pump) for pump in pumps]


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def _pump(source: AsyncIterator[Any], queue: asyncio.Queue[pb.LogRecords | MonarchNbError | None]) -> None:
    """Put what a node sends into the queue, and then None, or why no more comes."""
    try:
        async for batch in source:
            await queue.put(batch)
    except MonarchNbError as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def _together(queue: asyncio.Queue[T]) -> list[T]:
    """Wait for something, and a little longer: equal lines of several nodes can be shown once."""
    got = [await queue.get()]
    await asyncio.sleep(cadence(0.2))
    while not queue.empty():
        got.append(queue.get_nowait())
    return got


def _records(stream: AsyncIterator[Any]) -> Iterator[LogRecord]:
    while True:
        try:
            batch: pb.LogRecords = call(_next(stream))
        except _Ended:
            return
        yield from _decoded(batch)


def _decoded(batch: pb.LogRecords) -> Iterator[LogRecord]:
    for record in batch.records:
        text = record.text.decode(errors="backslashreplace")
        yield LogRecord(record.rank, "stderr" if record.stderr else "stdout", record.number, text)


class _Ended(Exception):
    pass


async def _next(stream: AsyncIterator[Any]) -> Any:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise _Ended from None


@dataclass(frozen=True)
class PastLog:
    """The output of a mesh whose reservation has ended.

    Attributes:
        name: of the reservation. ended_at: in seconds since the epoch.
        ranks: those whose output is read.
    """

    name: str
    ended_at: float
    ranks: tuple[int, ...]
    _parts: Sequence[tuple[Connection, pb.MeshStatus]] = field(repr=False)
    """One of each node that it was on; a node may have taken over those of others."""

    def past_runs(self, tracebacks_of: int = 0) -> list[RunInfo]:
        """Return what was run, each with its failures; those of one run, by its number, with their tracebacks."""
        told = []
        for connection, mesh in self._parts:
            shown = pb.MeshStatus()
            shown.CopyFrom(mesh)
            for result in (each for run in shown.runs if run.number != tracebacks_of for each in run.failures):
                result.failure.ClearField("traceback")
            told.append((connection.name, shown))
        return run_infos(told, current_owner(self._parts[0][0].identity))

    def records(self, lines: int | None, number: int | None) -> Iterator[LogRecord]:
        """Yield what ranks printed, run after run.

        Args:
            lines: the last lines of each rank; None for all.
            number: only of that run.
        """
        asked = pb.ReadLogsRequest(number=number or 0, last_lines=lines or 0)
        requests = []
        for connection, mesh_id, ranks in self._asked():
            request = pb.ReadLogsRequest(mesh_id=mesh_id, ranks=ranks)
            request.MergeFrom(asked)
            requests.append((connection, request))
        return read_logs(requests)

    def numbers(self, run: int) -> RunMetrics:
        """Return what reads the numbers of a run."""
        return RunMetrics(self._asked(), run, self.ranks)

    def _asked(self) -> Iterator[tuple[Connection, str, list[int]]]:
        """Yield which ranks each node is asked for, under which id of their mesh."""
        for connection, mesh in self._parts:
            if ranks := [rank.rank for rank in mesh.ranks if rank.rank in self.ranks]:
                yield connection, mesh.mesh_id, ranks


def past_log(name: str, pool: str | None, mesh: str | None = None, targets: str | None = None) -> PastLog | None:
    """Return the output of your reservation of that name that has ended last; None when none is kept.

    Args:
        mesh: which of its meshes; by default the main one.
        targets: some of its ranks, as `-t` takes them.

    Raises:
        MeshNotFound: no mesh of that name printed anything.
        TargetError: the targets can not be read, or name ranks that it did not have.
    """
    chosen, mesh = pool_named(pool), mesh or MAIN_MESH
    mine = current_owner(chosen.identity)
    told: list[tuple[Connection, pb.PastLog]] = []
    for connection, reply in call(_ask(chosen, name)).items():
        if isinstance(reply, pb.StatusReply):
            told += [(connection, past) for past in reply.past_logs if past.owner == mine]
    if not told:
        return None
    newest = max((past for _, past in told), key=lambda past: past.ended_at)
    of_it = [(node, past) for node, past in told if past.reservation_id == newest.reservation_id]
    parts = [(node, past.mesh) for node, past in of_it if past.mesh.name == mesh]
    if not parts:
        there = ", ".join(sorted({past.mesh.name for _, past in of_it}))
        raise MeshNotFound(f"no output of a mesh {mesh!r} of {name} is kept; there is that of {there}")
    ranks = sorted(rank.rank for _, part in parts for rank in part.ranks)
    chosen_ranks = (
        parse_targets(targets, Extent({"hosts": len(parts), "procs": len(ranks) // len(parts)})) if targets else ranks
    )
    return PastLog(name, newest.ended_at, tuple(chosen_ranks), parts)


async def _ask(pool: Pool, name: str) -> Mapping[Connection, pb.StatusReply | BaseException]:
    request = pb.StatusRequest(past_logs=name)
    return await answers({node: node.unary("Status", request, STATUS_TIMEOUT_S) for node in await pool.discover()})
