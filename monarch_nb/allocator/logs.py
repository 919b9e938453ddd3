"""`ReadLogs`: every line that ranks wrote, run after run, from the files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from monarch_nb.allocator.output import RankFiles, stored_outputs
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_PIECE_BYTES = 256 << 10


async def read_logs(node: Node, request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogRecords]:
    """Yield what ranks wrote: by run, then by rank, whole lines, stdout and stderr interleaved as they were written.

    With `last_lines` only the newest lines of each rank.
    """
    mesh = node.state.mesh(request.mesh_id)
    ranks = [rank for rank in sorted(mesh.ranks) if not request.ranks or rank in request.ranks]
    runs = node.paths.runs(request.mesh_id)
    # Of the runs that share an output only a rank's newest can have written to it there.
    number_of = {(run.output, rank): run.number for run in mesh.runs.values() for rank in run.ranks}
    written = [
        (number_of.get((output, rank), output), rank, output) for output in stored_outputs(runs) for rank in ranks
    ]
    written = sorted(one for one in written if request.number in (0, one[0]))
    if request.last_lines:
        for rank in ranks:
            records: list[pb.LogRecord] = []
            for number, _, output in reversed([one for one in written if one[1] == rank]):
                piece = _run_records(RankFiles(runs, output, rank), number, request.last_lines)
                records = [*piece, *records][-request.last_lines :]
                if len(records) >= request.last_lines:
                    break
            if records:
                yield pb.LogRecords(records=records)
        return
    for number, rank, output in written:
        async for batch in _all_records(RankFiles(runs, output, rank), number):
            yield batch


def _run_records(files: RankFiles, number: int, lines: int) -> list[pb.LogRecord]:
    """Return the newest lines of a run."""
    records: list[pb.LogRecord] = []
    for kind, start, end in reversed(files.segments()):
        window = 64 << 10
        while True:
            data = files.read(kind, max(start, end - window), end)
            if data.count(b"\n") > lines or end - window <= start:
                break
            window *= 4
        pieces = re.findall(rb"[^\n]*\n|[^\n]+", data)[-(lines - len(records)) :]
        records = [*(_record(files.rank, number, kind, piece) for piece in pieces), *records]
        if len(records) >= lines:
            break
    return records


async def _all_records(files: RankFiles, number: int) -> AsyncIterator[pb.LogRecords]:
    for kind, start, end in files.segments():
        pending = b""
        while start < end:
            data = await asyncio.to_thread(files.read, kind, start, min(end, start + _PIECE_BYTES))
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


def _last_character(data: bytes) -> int:
    """Return where the last UTF-8 character of `data` begins."""
    start = len(data) - 1
    while start > len(data) - 4 and data[start] & 0xC0 == 0x80:
        start -= 1
    return start


def _record(rank: int, number: int, kind: str, text: bytes) -> pb.LogRecord:
    return pb.LogRecord(rank=rank, stderr=kind == "err", number=number, text=text)
