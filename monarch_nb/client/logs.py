"""Log records, merged from the nodes."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from monarch_nb.client.bridge import call
from monarch_nb.client.connection import Connection
from monarch_nb.client.events import Stream
from monarch_nb.proto import allocator_pb2 as pb


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


def _records(stream: AsyncIterator[Any]) -> Iterator[LogRecord]:
    while True:
        try:
            batch: pb.LogRecords = call(_next(stream))
        except StopIteration:
            return
        except _Ended:
            return
        for record in batch.records:
            yield LogRecord(
                record.rank,
                "stderr" if record.stderr else "stdout",
                record.number,
                record.text.decode(errors="backslashreplace"),
            )


class _Ended(Exception):
    pass


async def _next(stream: AsyncIterator[Any]) -> Any:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise _Ended from None
