"""Which lines a rank wrote in one run, and where in its files they are: any line is found without reading those before.

A line belongs to one stream. Lines of both streams are in the order in which they began, so lines are only ever added
at the end, and only the newest line of a stream can still grow.

Lines that were dropped (monarch_nb.allocator.logs.output) keep their numbers if they were counted before; each reads as
what was dropped. What was dropped before it was counted is one line.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from zlib import adler32, crc32

from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import Dropped
from monarch_nb.lines.logged import keys_of
from monarch_nb.lines.templates import FoldBy
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

BLOCK_BYTES = 64 << 10
"""Of every block it is known how many lines end before it."""
_STEP_BYTES = 256 << 10
"""Read and counted at a time: the node does nothing else for so long."""
_BATCH_BYTES = 32 << 20
"""After so much, what was counted can be seen."""
_MARKS_BYTES = 16 << 10
_DIGESTED_BYTES = 64 << 10

Line = tuple[str, bytes, int]
"""Stream ("out" or "err"), text without its line end and perhaps cut, size of the whole in bytes."""


class StreamIndex:
    """The lines of one growing file.

    Attributes:
        size_bytes: how much is counted.
        dropped_lines: how many of the lines are gone.
    """

    def __init__(self, files: RankFiles, kind: str) -> None:
        self._files, self._kind = files, kind
        self.size_bytes = 0
        self._newlines = 0
        self._ends_line = True
        self._before = array("Q", [0])
        """How many lines end before each block that has begun."""
        self.dropped_lines = 0
        self._left, self._instead = 0, b""
        """Where what is left begins, and what is shown for each line before it."""

    @property
    def lines(self) -> int:
        """How many lines have begun."""
        return self._newlines + (not self._ends_line)

    async def extend(self, cuts: Sequence[int]) -> list[int]:
        """Count up to the last of `cuts`; return for each how many lines begin before it."""
        begun: list[int] = []
        while len(begun) < len(cuts):
            start = self.size_bytes
            end = min(cuts[-1], start + _STEP_BYTES)
            data = await self._load(start, end)
            if len(data) < end - start:
                raise OSError(f"{self._files.path(self._kind)} became shorter")
            self._count_cuts(data, start, cuts, begun)
            self._count_blocks(data, start)
        return begun

    def drop(self, dropped: Dropped) -> None:
        """What is before some offset is gone."""
        left = dropped.before(self._kind)
        if left <= self._left:
            return
        if left < self.size_bytes:
            block = left // BLOCK_BYTES + 1
            is_whole = block < len(self._before)
            after = self._files.read(self._kind, left, block * BLOCK_BYTES if is_whole else self.size_bytes)
            self.dropped_lines = (self._before[block] if is_whole else self._newlines) - after.count(b"\n")
        else:
            blocks = left // BLOCK_BYTES + 1 - len(self._before)
            self._before.extend(repeat(self._newlines, blocks))
            self._newlines += left > self.size_bytes or not self._ends_line
            if left % BLOCK_BYTES == 0 and blocks:
                self._before[-1] = self._newlines
            self.size_bytes, self._ends_line, self.dropped_lines = left, True, self._newlines
        self._left, self._instead = left, dropped.line(left)

    async def _load(self, start: int, end: int) -> bytes:
        """Read; what is little in place, because most runs print little and a thread costs more."""
        if end - start <= BLOCK_BYTES:
            return self._files.read(self._kind, start, end)
        return await asyncio.to_thread(self._files.read, self._kind, start, end)

    def _count_cuts(self, data: bytes, start: int, cuts: Sequence[int], begun: list[int]) -> None:
        position, newlines, end = 0, self._newlines, start + len(data)
        for cut in cuts[len(begun) :]:
            if cut > end:
                break
            newlines += data.count(b"\n", position, cut - start)
            position = cut - start
            begun.append(newlines + (data[position - 1] != 10))

    def _count_blocks(self, data: bytes, start: int) -> None:
        position = 0
        while position < len(data):
            end = min(len(data), BLOCK_BYTES * len(self._before) - start)
            self._newlines += data.count(b"\n", position, end)
            position = end
            if start + end == BLOCK_BYTES * len(self._before):
                self._before.append(self._newlines)
        self.size_bytes = start + len(data)
        self._ends_line = data.endswith(b"\n")

    async def start(self, line: int) -> int:
        """Return where a line begins; for one that has not begun, the end."""
        if line >= self.lines:
            return self.size_bytes
        if line <= self.dropped_lines:
            return self._left
        block = bisect_left(self._before, line) - 1
        first, last = block * BLOCK_BYTES, min(self.size_bytes, (block + 1) * BLOCK_BYTES)
        before = self._before[block]
        if first < self._left:
            first, before = self._left, self.dropped_lines
        data = await self._load(first, last)
        rest = data.split(b"\n", line - before)[-1]
        return first + len(data) - len(rest)

    async def read(self, first: int, last: int, most_bytes: int) -> list[Line]:
        """Return the lines from `first` to before `last`: at least one, then as many as fit in `most_bytes`."""
        if first >= last:
            return []
        if first < self.dropped_lines:
            count = min(last, self.dropped_lines) - first
            return [(self._kind, self._instead, len(self._instead))] * min(count, 1 + most_bytes // len(self._instead))
        start, end = await self.start(first), await self.start(last)
        data = await self._load(start, min(end, start + most_bytes))
        texts = data.split(b"\n")
        lines = [(self._kind, text, len(text)) for text in texts[:-1]]
        if start + len(data) == end:
            return lines if data.endswith(b"\n") else [*lines, (self._kind, texts[-1], len(texts[-1]))]
        if not lines:  # a very long line
            following = await self.start(first + 1)
            ends_line = first + 1 < self.lines or self._ends_line
            return [(self._kind, data, following - start - ends_line)]
        return lines


class RankIndex:
    """The lines of one rank in one run.

    Args:
        number: the run's.
    """

    def __init__(self, files: RankFiles, number: int) -> None:
        self.files, self.number = files, number
        self.used_s = 0.0
        self._is_broken = False
        self.streams = {kind: StreamIndex(files, kind) for kind in ("out", "err")}
        self._cursor = run_pb2.Cursor()
        self._extending: asyncio.Task[None] | None = None
        # Lines in the order in which they began, as pieces that alternate between the streams: how many lines of
        # stdout, of stderr and of both are before each piece.
        self._first_kind = "out"
        self._outs, self._errs, self._rows = array("Q"), array("Q"), array("Q")
        self._counted = {"out": 0, "err": 0}

    @property
    def part(self) -> pb.LogPart:
        """What there is, as far as it is counted."""
        return pb.LogPart(
            number=self.number,
            rank=self.files.rank,
            stdout_lines=self._counted["out"],
            stderr_lines=self._counted["err"],
            size_bytes=sum(stream.size_bytes for stream in self.streams.values()),
        )

    def is_behind(self) -> bool:
        """Whether there is more than is counted."""
        return not self._is_broken and any(
            self.files.size_bytes(kind) > stream.size_bytes for kind, stream in self.streams.items()
        )

    async def extend(self) -> None:
        """Count what was written since. Several may wait for it; it goes on when one of them gives up.

        Raises:
            OSError: the files can not be read; what is counted stays, and nothing is added any more.
        """
        if self._extending is None or self._extending.done():
            if not self.is_behind():
                return
            self._extending = asyncio.create_task(self._extend())
        await asyncio.shield(self._extending)

    async def _extend(self) -> None:
        try:
            while await self._extend_once():
                pass
        except OSError:
            self._is_broken = True
            raise

    async def _extend_once(self) -> bool:
        """Count what was written, or some of it; return whether there was more."""
        await asyncio.sleep(0)
        dropped = self.files.dropped()
        for kind, stream in self.streams.items():
            stream.drop(dropped)
            self._add_lines(kind, stream.lines)
        since, _ = self.files.past_dropped(self._cursor)
        pieces, cursor = self.files.segments(since, _MARKS_BYTES)
        for batch in _batches(pieces):
            cuts = {kind: [end for each, end in batch if each == kind] for kind in self.streams}
            begun = {kind: iter(await self.streams[kind].extend(ends)) for kind, ends in cuts.items()}
            for kind, _ in batch:
                self._add_lines(kind, next(begun[kind]))
        before, self._cursor = self._cursor.marks_bytes, cursor
        return before < cursor.marks_bytes < self.files.size_bytes("marks")

    def _add_lines(self, kind: str, begun: int) -> None:
        """Up to here so many lines of a stream have begun."""
        if begun == self._counted[kind]:
            return
        if not self._rows:
            self._first_kind = kind
        if not self._rows or self._kind_of(len(self._rows) - 1) != kind:
            outs, errs = self._counted["out"], self._counted["err"]
            self._outs.append(outs)
            self._errs.append(errs)
            self._rows.append(outs + errs)
        self._counted[kind] = begun

    def _kind_of(self, piece: int) -> str:
        return self._first_kind if piece % 2 == 0 else ("err" if self._first_kind == "out" else "out")

    # ---- numbers of lines ----

    def lines(self, stream: pb.LogStream.ValueType) -> int:
        """How many lines there are."""
        return sum(self._counted[kind] for kind in _KINDS[stream])

    def look_for_dropped(self) -> None:
        """See what was dropped since of the lines that are counted; raises OSError when that can not be read."""
        dropped = self.files.dropped()
        for kind, stream in self.streams.items():
            if dropped.before(kind) <= stream.size_bytes:  # else it is on its way
                stream.drop(dropped)

    def ranges(self, stream: pb.LogStream.ValueType, first: int, last: int) -> dict[str, tuple[int, int]]:
        """Return which lines of each stream lines `first` to before `last` are."""
        first, last = (min(line, self.lines(stream)) for line in (first, last))
        if stream != pb.LOG_STREAM_UNSPECIFIED:
            return {_KINDS[stream][0]: (first, last)}
        before, after = self._split(first), self._split(last)
        return {kind: (before[kind], after[kind]) for kind in self.streams}

    def _split(self, row: int) -> dict[str, int]:
        """Return how many lines of each stream are before a line of both."""
        if row == 0:
            return {"out": 0, "err": 0}
        piece = bisect_right(self._rows, row - 1) - 1
        if self._kind_of(piece) == "out":
            return {"out": row - self._errs[piece], "err": self._errs[piece]}
        return {"out": self._outs[piece], "err": row - self._outs[piece]}

    def _kinds(self, first: int, last: int) -> Iterator[tuple[str, int]]:
        """Yield whose lines `first` to before `last` of both streams are: (stream, how many) one after the other."""
        piece = bisect_right(self._rows, first) - 1
        while first < last:
            end = min(last, self._rows[piece + 1] if piece + 1 < len(self._rows) else last)
            yield self._kind_of(piece), end - first
            first, piece = end, piece + 1

    def number_both(self, kind: str, lines: array[int]) -> array[int]:
        """Return the numbers among lines of both streams of some lines of one, which are in order."""
        own, others = (self._outs, self._errs) if kind == "out" else (self._errs, self._outs)
        numbered = array("Q")
        position = 0
        while position < len(lines):
            # Of pieces with as many lines of this stream before them the last one is of this stream.
            piece = bisect_right(own, lines[position]) - 1
            end = bisect_left(lines, own[piece + 1], position) if piece + 1 < len(own) else len(lines)
            some, added = lines[position:end], others[piece]
            numbered.extend((line + added for line in some) if added else some)
            position = end
        return numbered

    # ---- lines ----

    async def read(self, stream: pb.LogStream.ValueType, first: int, last: int, most_bytes: int) -> list[Line]:
        """Return lines `first` to before `last`, or as many of them as fit in `most_bytes` (about)."""
        self.look_for_dropped()
        last = min(last, self.lines(stream))
        ranges = self.ranges(stream, first, last)
        lines = {kind: await self.streams[kind].read(*range_, most_bytes) for kind, range_ in ranges.items()}
        if stream != pb.LOG_STREAM_UNSPECIFIED:
            return lines[_KINDS[stream][0]]
        merged: list[Line] = []
        taken = {"out": 0, "err": 0}
        for kind, count in self._kinds(first, last):
            some = lines[kind][taken[kind] : taken[kind] + count]
            merged += some
            taken[kind] += len(some)
            if len(some) < count:
                break
        return merged


_KINDS = {pb.LOG_STREAM_UNSPECIFIED: ("out", "err"), pb.LOG_STREAM_STDOUT: ("out",), pb.LOG_STREAM_STDERR: ("err",)}


def _batches(pieces: list[tuple[str, int, int]]) -> Iterator[list[tuple[str, int]]]:
    """Yield the ends of pieces by stream, in order, a bounded amount of text together."""
    batch: list[tuple[str, int]] = []
    size_bytes = 0
    for kind, start, end in pieces:
        for cut in (*range(start + _BATCH_BYTES, end, _BATCH_BYTES), end):
            batch.append((kind, cut))
            size_bytes += cut - start
            start = cut
            if size_bytes >= _BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
    if batch:
        yield batch


def digests(lines: list[Line], by: FoldBy = "equal") -> bytes:
    """Return 8 bytes for each line: equal for lines of the same stream that may share a row, on any machine."""
    packed = array("I", bytes(8 * len(lines)))
    texts = keys_of(
        [text if size <= _DIGESTED_BYTES else b"%d %b" % (size, text[:_DIGESTED_BYTES]) for _, text, size in lines], by
    )
    seeds = [kind == "err" for kind, _, _ in lines]
    packed[0::2] = array("I", map(crc32, texts, seeds))
    packed[1::2] = array("I", map(adler32, texts, repeat(1)))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
