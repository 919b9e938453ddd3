"""`ReadLogs`: every line that ranks wrote, run after run, from the files."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import TYPE_CHECKING

from monarch_nb.allocator.logs.output import MeshLogs, RankFiles, Written
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.runs.sessions import OUTPUT_INTERVAL_S, UNWATCHED_INTERVAL_S
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_PIECE_BYTES = 256 << 10
_LITTLE_BYTES = 64 << 10
_RECORD_BYTES = 16
"""What a line costs in a message besides its text."""
_FOLLOWED_OUTPUTS = 16
"""The newest: what older runs may still write is not worth a watch each."""


class LogReader:
    """Reads the logs of a node."""

    def __init__(self, node: Node) -> None:
        self._paths, self._state, self._watch, self._kept = node.paths, node.state, node.watch, node.kept_logs

    async def read(self, request: pb.ReadLogsRequest) -> AsyncGenerator[pb.LogRecords, None]:
        """Yield what ranks wrote: by run, then by rank, whole lines, stdout and stderr interleaved as they were
        written.

        With `last_lines` only the newest lines of each rank. With `follow`, then what they go on to write, as it comes.
        """
        shown: dict[RankFiles, run_pb2.Cursor] = {}
        logs = self._logs(request)
        ranks = logs.ranks(request.ranks)
        if request.last_lines:
            if records := _newest_records(logs, request, shown):
                yield pb.LogRecords(records=records)
        else:
            async for batch in _all_records(logs.written(ranks, request.number), shown):
                yield batch
        if request.follow:
            async with contextlib.aclosing(self._follow(request, shown)) as coming:
                async for batch in coming:
                    yield batch

    def _logs(self, request: pb.ReadLogsRequest) -> MeshLogs:
        if request.follow:
            return MeshLogs(self._state.mesh(request.mesh_id), self._paths.runs(request.mesh_id))
        return MeshLogs(*self._kept.logs_of(request.mesh_id, self._state))

    async def _follow(
        self, request: pb.ReadLogsRequest, shown: dict[RankFiles, run_pb2.Cursor]
    ) -> AsyncGenerator[pb.LogRecords, None]:
        mesh, runs = self._state.mesh(request.mesh_id), self._paths.runs(request.mesh_id)
        followed = next((run for run in mesh.runs.values() if run.number == request.number), None)
        changed = asyncio.Event()
        try:
            while True:
                is_last = request.number != 0 and (followed is None or followed.finished)
                changed.clear()
                newest = stored_outputs(runs)[-_FOLLOWED_OUTPUTS:]
                for directory in (runs, *(runs / str(output) for output in newest)):
                    self._watch.arm(directory, changed.set)
                logs = self._logs(request)
                for number, files in logs.written(logs.ranks(request.ranks), request.number, newest):
                    async for batch in _records_since(files, number, shown):
                        yield batch
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):  # no change of a file tells that a run has finished
                    async with asyncio.timeout(UNWATCHED_INTERVAL_S):
                        await changed.wait()
                await asyncio.sleep(OUTPUT_INTERVAL_S)  # what comes at a time goes in one message
        finally:
            self._watch.disarm(changed.set)


async def _all_records(
    written: Iterable[Written], shown: dict[RankFiles, run_pb2.Cursor]
) -> AsyncIterator[pb.LogRecords]:
    """Yield everything, what is little together, and note in `shown` up to where it was read."""
    together, size_bytes = pb.LogRecords(), 0
    for number, files in written:
        await asyncio.sleep(0)
        async for batch in _records_since(files, number, shown):
            together.records.extend(batch.records)
            size_bytes += sum(len(record.text) + _RECORD_BYTES for record in batch.records)
            if size_bytes >= _PIECE_BYTES:
                yield together
                together, size_bytes = pb.LogRecords(), 0
    if together.records:
        yield together


def _newest_records(
    logs: MeshLogs, request: pb.ReadLogsRequest, shown: dict[RankFiles, run_pb2.Cursor]
) -> list[pb.LogRecord]:
    """Return the newest lines of each rank, and note in `shown` that what was written before is not wanted."""
    newest: list[pb.LogRecord] = []
    for rank in logs.ranks(request.ranks):
        records: list[pb.LogRecord] = []
        written = logs.written([rank], request.number)
        shown.update((files, files.end()) for _, files in written if request.follow)
        for number, files in reversed(written):
            records = [*_last_records(files, number, request.last_lines, shown), *records][-request.last_lines :]
            if len(records) == request.last_lines:
                break
        newest += records
    return sorted(newest, key=lambda record: record.number)


def _last_records(
    files: RankFiles, number: int, lines: int, shown: dict[RankFiles, run_pb2.Cursor]
) -> list[pb.LogRecord]:
    """Return the newest lines of a run."""
    since, dropped = files.past_dropped(run_pb2.Cursor())
    pieces, shown[files] = files.segments(since)
    records: list[pb.LogRecord] = []
    for kind, start, end in reversed(pieces):
        window = 64 << 10
        while True:
            data = files.read(kind, max(start, end - window), end)
            if data.count(b"\n") > lines or end - window <= start:
                break
            window *= 4
        found = re.findall(rb"[^\n]*\n|[^\n]+", data)[-(lines - len(records)) :]
        records = [*(_record(files.rank, number, kind, line) for line in found), *records]
        if len(records) >= lines:
            return records
    if dropped:
        records.insert(0, _record(files.rank, number, "out", dropped + b"\n"))
    return records


async def _records_since(
    files: RankFiles, number: int, shown: dict[RankFiles, run_pb2.Cursor]
) -> AsyncIterator[pb.LogRecords]:
    """Yield what was written since it was read the last time, and note in `shown` up to where."""
    since, dropped = files.past_dropped(shown.get(files) or run_pb2.Cursor())
    pieces, shown[files] = files.segments(since)
    if dropped:
        yield pb.LogRecords(records=[_record(files.rank, number, "out", dropped + b"\n")])
    for kind, start, end in pieces:
        pending = b""
        while start < end:
            data = await _load(files, kind, start, min(end, start + _PIECE_BYTES))
            if b"\0" in data and (left := files.dropped().before(kind)) > start:  # since this began
                gone = files.dropped().line(min(left, end) - start)
                yield pb.LogRecords(records=[_record(files.rank, number, kind, gone + b"\n")])
                start, pending = left, b""
                continue
            if not data:
                break
            start += len(data)
            whole, newline, rest = (pending + data).rpartition(b"\n")
            if newline:
                records = [_record(files.rank, number, kind, line + b"\n") for line in whole.split(b"\n")]
                yield pb.LogRecords(records=records)
            pending = rest
            if len(pending) > 4 * _PIECE_BYTES:  # a very long line travels in pieces
                cut = _last_character(pending)
                yield pb.LogRecords(records=[_record(files.rank, number, kind, pending[:cut])])
                pending = pending[cut:]
        if pending:
            yield pb.LogRecords(records=[_record(files.rank, number, kind, pending)])


async def _load(files: RankFiles, kind: str, start: int, end: int) -> bytes:
    """Read; what is little in place, because most runs print little and a thread costs more."""
    if end - start <= _LITTLE_BYTES:
        return files.read(kind, start, end)
    return await asyncio.to_thread(files.read, kind, start, end)


def _last_character(data: bytes) -> int:
    """Return where the last UTF-8 character of `data` begins."""
    start = len(data) - 1
    while start > len(data) - 4 and data[start] & 0xC0 == 0x80:
        start -= 1
    return start


def _record(rank: int, number: int, kind: str, text: bytes) -> pb.LogRecord:
    return pb.LogRecord(rank=rank, stderr=kind == "err", number=number, text=text)
