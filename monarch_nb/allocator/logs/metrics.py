"""Numbers that lines have beside names, read by `python -m monarch_nb.allocator.logs.metrics PID`.

It keeps what it has read, thinned, so that only what is new is read the next time. What it keeps is bounded: the newest
readings, in each the shapes of lines, and of each curve and rank some hundred buckets. It gives way to the ranks.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias, TypeVar

from monarch_nb.allocator.logs.helper import Helper, serve
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import StoredFiles
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.lines.extraction import Extraction, Taken
from monarch_nb.lines.laps import Laps
from monarch_nb.lines.named import LOOKED_AT_CHARACTERS
from monarch_nb.lines.thinning import Buckets, Curve
from monarch_nb.proto import allocator_pb2 as pb

ANSWER_S = patience(60.0)
"""How long an answer may take besides the time that it was given to read."""
_LONGEST_BUDGET_S = 5.0


class MetricsReader(Helper):
    """Reads for one request after the other. Its process is started when it is needed and ends when it is idle."""

    def __init__(self) -> None:
        super().__init__("monarch_nb.allocator.logs.metrics", gap(120.0))

    async def read(
        self, request: pb.ReadMetricsRequest, runs: Path, files: Sequence[RankFiles], *, is_over: bool
    ) -> pb.ReadMetricsReply:
        """Return what is asked for, of the files of a run.

        Args:
            runs: the directory of the mesh's outputs. files: in the order in which they are to be read.
            is_over: nothing more is written.

        Raises:
            MonarchNbError: it takes too long, or too much memory.
        """
        budget_s = min(request.budget_s, _LONGEST_BUDGET_S)
        told = {"runs": str(runs), "files": [(each.output, each.rank) for each in files], "over": is_over}
        asked = json.dumps(told | {"budget_s": budget_s}).encode() + b"\n" + request.SerializeToString()
        try:
            answer = await self.ask(asked, budget_s + ANSWER_S)
        except TimeoutError as error:
            raise MonarchNbError(f"the output of run {request.number} can not be read in {ANSWER_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            what = f"the numbers of run {request.number} can not be read: the process that does it ended"
            raise MonarchNbError(f"{what} ({error}); try fewer names") from error
        return pb.ReadMetricsReply.FromString(answer)


T = TypeVar("T")
_CurveKey: TypeAlias = tuple[str, str, str]
_Series: TypeAlias = tuple[_CurveKey, str | None, tuple[bool, ...]]
"""Of lines: their curve, what counts their steps, whether they have an x, ends and epochs."""
_Line: TypeAlias = tuple[int, float, float, float, float]
"""Its place, step, end, epoch and number."""

MAX_READINGS = 8
MAX_CURVES = 64
"""Of a reading: names whose numbers have several units have several."""
MAX_SERIES = 16_384
"""Of a reading, over all ranks: of more lines steps that begin anew are not counted on."""
MAX_ODD = 16
_STEP_BYTES = 256 << 10
_ROWS_BYTES = 1 << 20
_NICENESS = 10


@dataclass
class _Position:
    """Where in a file to go on. `is_inside`: of a very long line the beginning was read."""

    offset: int = 0
    is_inside: bool = False


class _Lines:
    """What a rank wrote to a stream, in whole lines, from a position on."""

    def __init__(self, files: StoredFiles, kind: str, position: _Position, *, is_over: bool) -> None:
        self._files, self._kind, self._position, self._is_over = files, kind, position, is_over
        self.size_bytes = files.size_bytes(kind)
        position.offset = max(position.offset, files.dropped().before(kind))

    def pieces(self) -> Iterator[bytes]:
        """Yield some lines at a time; a progress bar's states are lines."""
        at = self._position
        while at.offset < self.size_bytes:
            end = min(self.size_bytes, at.offset + _STEP_BYTES)
            data = self._files.read(self._kind, at.offset, end)
            if not data:
                return
            is_last = end == self.size_bytes
            whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if whole == 0 and is_last and not self._is_over:
                return  # it goes on
            if whole == 0 or (is_last and self._is_over):
                whole, lines = len(data), data if is_last else data[:LOOKED_AT_CHARACTERS]
                goes_on = not is_last
            else:
                lines, goes_on = data[: whole - 1], False
            if at.is_inside:
                lines = lines.partition(b"\n")[2]
            at.offset, at.is_inside = at.offset + whole, goes_on
            yield lines.replace(b"\0", b"") if b"\0" in lines else lines


@dataclass
class Reading:
    """What one request, asked again and again, has read so far."""

    extraction: Extraction
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: int = 0
    curves: dict[_CurveKey, Curve] = field(default_factory=dict)
    positions: dict[tuple[int, int, str], _Position] = field(default_factory=dict)
    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    """By rank and name, for curves that are against the count of lines."""
    laps: dict[object, Laps] = field(default_factory=dict)
    """By rank, stream and series, for curves that are against steps."""
    read_bytes: int = 0
    size_bytes: int = 0
    ranks_read: int = 0

    def read_on(self, files: Iterable[StoredFiles], deadline_s: float, *, is_over: bool) -> bool:
        """Read what was written since, as long as there is time; return whether that is all."""
        self.version += 1
        self.read_bytes = self.size_bytes = self.ranks_read = 0
        late, is_all = False, True
        for one in files:
            is_read = True
            for kind in ("out", "err"):
                position = self.positions.setdefault((one.output, one.rank, kind), _Position())
                lines = _Lines(one, kind, position, is_over=is_over)
                for piece in () if late else lines.pieces():
                    self._take(one, kind, piece)
                    if late := time.monotonic() > deadline_s:
                        break
                self.size_bytes += lines.size_bytes
                self.read_bytes += position.offset
                late = late or (is_over and position.offset < lines.size_bytes)
                is_read = is_read and (not late or position.offset >= lines.size_bytes)
            self.ranks_read += is_read
            is_all = is_all and is_read
        return is_all

    def _take(self, files: StoredFiles, kind: str, lines: bytes) -> None:
        series: dict[_Series, list[_Line]] = {}
        for taken in self.extraction.take(lines, files.rank):
            has, none = tuple(map(bool, (taken.x, taken.ends, taken.epochs))), [0.0] * len(taken.places)
            for key, values in zip(taken.keys, taken.values, strict=True):
                one = (*key, taken.kind), taken.step, has
                columns = taken.places, taken.x or none, taken.ends or none, taken.epochs or none, values
                series.setdefault(one, []).extend(zip(*columns, strict=True))
        for one, found in series.items():
            found.sort(key=itemgetter(0))
            _, steps, ends, epochs, numbers = zip(*found, strict=True)
            xs: Sequence[float] = steps
            curve_key, step, (has_x, has_ends, has_epochs) = one
            if not has_x:
                first = self.counts.get((files.rank, curve_key[0]), 0) + 1
                self.counts[files.rank, curve_key[0]] = first + len(found) - 1
                xs = range(first, first + len(found))
            elif step is not None and (laps := self._laps(files.rank, kind, one)) is not None:
                xs = laps.counted(files.output, steps, ends if has_ends else (), epochs if has_epochs else ())
            self._add(curve_key, files.rank, xs, numbers)

    def _laps(self, rank: int, kind: str, series: _Series) -> Laps | None:
        """Return what counts the steps of a series on; None when there are too many."""
        key = rank, kind, series
        if key not in self.laps and len(self.laps) < MAX_SERIES:
            self.laps[key] = Laps()
        return self.laps.get(key)

    def _add(self, key: _CurveKey, rank: int, xs: Iterable[float], ys: Iterable[float]) -> None:
        curve = self.curves.get(key)
        if curve is None:
            if len(self.curves) >= MAX_CURVES:
                return
            curve = self.curves[key] = Curve()
        curve.add(rank, xs, ys, self.version)

    def reply(self, lead: int, since: int) -> pb.ReadMetricsReply:
        """Return what has changed since a version; 0: all."""
        told = pb.ReadMetricsReply(reading=self.id, version=self.version, ranks_read=self.ranks_read)
        told.read_bytes, told.size_bytes = self.read_bytes, self.size_bytes
        told.unlisted_lines = self.extraction.unlisted_lines
        for (name, unit), known in self.extraction.names().items() if not since else ():
            told.names.add(name=name, unit=unit, count=known.count, last=known.last, ranks=sorted(known.ranks))
        for key, curve in self.curves.items():
            if not since or curve.whole_since > since or curve.since(since):
                told.curves.append(_told(key, curve, lead, 0 if curve.whole_since > since else since))
        return told


def _told(key: _CurveKey, curve: Curve, lead: int, since: int) -> pb.MetricCurve:
    name, unit, x = key
    changed = curve.since(since)
    told = pb.MetricCurve(name=name, unit=unit, x=x, width=curve.width, whole=not since)
    told.line = _line(curve.ranks.get(lead, {}), changed)
    numbers = array("d")
    for bucket in changed:
        band = curve.band(bucket)
        numbers.extend((bucket, band.low, band.high, band.differs, band.marks))
    told.band = _packed(numbers)
    told.count = sum(curve.counts.values())
    finite = {rank: last for rank, last in curve.last.items() if math.isfinite(last[1])}
    least, greatest = (by(finite, key=lambda rank: finite[rank][1], default=None) for by in (min, max))
    for rank in dict.fromkeys((lead, least, greatest)):
        if rank is not None and rank in curve.last:
            at, value = curve.last[rank]
            told.last.add(rank=rank, x=at, value=value, count=curve.counts[rank])
    for rank in sorted(curve.odd)[:MAX_ODD]:
        odd = curve.odd[rank]
        told.odd.add(rank=rank, x=odd.x, value=float(odd.text), count=odd.count)
    told.odd_ranks = len(curve.odd)
    return told


def _line(buckets: Buckets, changed: Iterable[float]) -> bytes:
    numbers = array("d")
    for key in changed:
        if (one := buckets.get(key)) is not None:
            numbers.extend((key, one.x_low, one.low, one.x_high, one.high, one.x_last, one.last, one.marks))
    return _packed(numbers)


def _packed(numbers: array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def rows(files: StoredFiles, place: pb.MetricPlace, extraction: Extraction, *, is_over: bool) -> pb.ReadMetricsReply:
    """Return numbers of a rank's lines from a place on: some of them."""
    told = pb.ReadMetricsReply()
    positions = {"out": _Position(place.stdout_bytes), "err": _Position(place.stderr_bytes)}
    base = read_bytes = 0
    is_all = True
    for kind, position in positions.items():
        for piece in _Lines(files, kind, position, is_over=is_over).pieces():
            for taken in extraction.take(piece):
                told.rows.append(_rows(taken, base))
            base += piece.count(b"\n") + piece.count(b"\r") + 1
            read_bytes += len(piece)
            if not position.is_inside and read_bytes > _ROWS_BYTES:
                is_all = False
                break
    told.finished = is_all
    told.place.stdout_bytes, told.place.stderr_bytes = positions["out"].offset, positions["err"].offset
    return told


def _rows(taken: Taken, base: int) -> pb.MetricRows:
    numbers = array("d")
    columns = [[base + place for place in taken.places], *([taken.x] if taken.x else []), *taken.values]
    for row in zip(*columns, strict=True):
        numbers.extend(row)
    names, units = zip(*taken.keys, strict=True)
    return pb.MetricRows(names=names, units=units, x=taken.kind, numbers=_packed(numbers))


class Worker:
    """Answers requests; the newest readings are kept."""

    def __init__(self) -> None:
        self._readings: dict[object, Reading] = {}
        self._extractions: dict[object, Extraction] = {}

    def answer(self, asked: bytes) -> bytes:
        """Return what was asked for, as messages."""
        header, _, packed = asked.partition(b"\n")
        told = json.loads(header)
        request = pb.ReadMetricsRequest.FromString(packed)
        files = [StoredFiles(Path(told["runs"]), output, rank) for output, rank in told["files"]]
        if request.rows:
            return self._rows(request, files, is_over=told["over"]).SerializeToString()
        return self._curves(request, files, told["budget_s"], is_over=told["over"]).SerializeToString()

    def _rows(self, request: pb.ReadMetricsRequest, files: list[StoredFiles], *, is_over: bool) -> pb.ReadMetricsReply:
        if not files:
            return pb.ReadMetricsReply(finished=True, place=request.place)
        key = request.mesh_id, request.number, tuple(request.names), request.x
        made = self._extractions.pop(key, None) or Extraction(request.names or None, request.x)
        _keep(self._extractions, key, made)
        return rows(files[0], request.place, made, is_over=is_over)

    def _curves(
        self, request: pb.ReadMetricsRequest, files: list[StoredFiles], budget_s: float, *, is_over: bool
    ) -> pb.ReadMetricsReply:
        key = request.mesh_id, request.number, tuple(request.ranks), tuple(request.names), request.x
        reading = self._readings.pop(key, None) or Reading(Extraction(request.names, request.x))
        _keep(self._readings, key, reading)
        is_all = reading.read_on(files, time.monotonic() + budget_s, is_over=is_over)
        lead = request.ranks[0] if request.ranks else 0
        reply = reading.reply(lead, request.since if request.reading == reading.id else 0)
        reply.finished = is_all and is_over
        return reply


def _keep(kept: dict[object, T], key: object, made: T) -> None:
    kept[key] = made
    while len(kept) > MAX_READINGS:
        del kept[next(iter(kept))]


def main() -> None:
    """Answer until the allocator has gone."""
    os.nice(_NICENESS)
    serve(Worker().answer)


if __name__ == "__main__":
    main()
