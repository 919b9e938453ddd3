"""Log records, merged from the nodes."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.events import Stream
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb

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
