"""The lines of one run, side by side: those that are alike on several ranks are one row. Pure.

A line is known by a digest of its stream and text, or of what its text has in common with those that may share its row.
Lines with the same digest are called equal here. Rows are found without looking at each line where ranks print the
same, and where they print different things in step; ranks get out of step where one prints what others do not, and are
brought back in step by the next line that they share.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

OPEN_LINES = 64
"""The newest lines of a rank may still change while the run goes on."""
BEHIND_LINES = 2_000
"""A rank that is silent and so far behind the others is not waited for."""
REACH_LINES = 64
"""How many lines of one's own a rank may print between lines that it shares."""
BARREN_LINES, PROBED_LINES = 4_000, 500
"""After so many lines of each rank without much to fold it is given up for a while; then as few are tried again."""
_SMALLEST, _LARGEST = 64, 1024
_SEGMENTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a line, the ranks that have it, and its number on each of them."""

    ranks: tuple[int, ...]
    lines: tuple[int, ...]

    @property
    def line(self) -> int:
        """Its number on the first of them."""
        return self.lines[0]


@dataclass(slots=True)
class _Segment:
    """`count` lines of each of `ranks`, from `starts` on, side by side.

    `rows` is how many rows each line makes or, where that differs, how many rows there are before each.
    """

    ranks: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    rows: int | array[int]

    @property
    def total(self) -> int:
        return self.rows * self.count if isinstance(self.rows, int) else self.rows[-1]

    def rows_before(self, index: int) -> int:
        return self.rows * index if isinstance(self.rows, int) else self.rows[index]

    def index_of(self, row: int) -> int:
        return row // self.rows if isinstance(self.rows, int) else bisect_right(self.rows, row) - 1


@dataclass(slots=True)
class _Patience:
    """Whether it is worth the time to bring ranks back in step: where nearly no line is shared, and what is shared is
    scattered, it is not. Then lines stand side by side as they come."""

    skipped: int = 0
    """So many more lines of each rank are laid out without looking."""
    stride: int = 0
    wanted: int = BARREN_LINES
    lines: int = 0
    rows: int = 0
    segments: int = 0

    def note(self, segment: _Segment) -> None:
        """Take a segment that was laid out."""
        if self.skipped:
            self.skipped = max(0, self.skipped - segment.count)
            return
        self.lines += segment.count * len(segment.ranks)
        self.rows += segment.total
        self.segments += 1

    def judge(self, ranks: int) -> None:
        """Decide how to go on, of so many ranks."""
        if self.skipped or self.lines < self.wanted * ranks:
            return
        is_barren = self.rows > 0.95 * self.lines and self.lines < 16 * ranks * self.segments
        self.stride = min(4 * self.stride or BARREN_LINES, 16 * BARREN_LINES) if is_barren else 0
        self.skipped, self.wanted = self.stride, PROBED_LINES if is_barren else BARREN_LINES
        self.lines = self.rows = self.segments = 0


class RunTable:
    """The rows of one run.

    Args:
        ranks: that may print something; others' lines wait for theirs.
        fold: whether equal lines are one row; if not, nobody needs to put digests in.

    Example:
        >>> table = RunTable()
        >>> table.put(0, 0, array("Q", [11, 12, 13]))
        >>> table.put(1, 0, array("Q", [11, 99, 13]))
        >>> table.layout()
        >>> [row.ranks for row in table.rows(0, 10)]
        [(0, 1), (0,), (1,), (0, 1)]
    """

    def __init__(self, ranks: Iterable[int] = (), *, fold: bool = True) -> None:
        self._fold = fold
        self._digests: dict[int, array[int]] = {}
        self._counts = dict.fromkeys(ranks, 0)
        self._segments: list[_Segment] = []
        self._first_rows: list[int] = [0]
        self._begins: dict[int, tuple[list[int], list[int]]] = {}
        """By rank: the lines with which segments of it begin, and the numbers of those."""
        self._settled = 0
        """So many segments stay as they are."""
        self._patience = _Patience()
        """As it was there."""
        self._settled_at: dict[int, int] = {}
        """By rank, its first line behind them."""

    def __len__(self) -> int:
        return self._first_rows[-1]

    @property
    def settled_rows(self) -> int:
        """How many rows will stay as they are, whatever comes."""
        return self._first_rows[self._settled]

    def count(self, rank: int) -> int:
        """Return how many lines of a rank are here."""
        return self._counts.get(rank, 0)

    def settled(self, rank: int) -> int:
        """Return how many lines of a rank will not be laid out again: those behind them may be put again."""
        return self._settled_at.get(rank, 0)

    def put(self, rank: int, first: int, digests: array[int]) -> None:
        """Say what a rank's lines from `first` on are; what was known of them is replaced."""
        known = self._digests.setdefault(rank, array("Q"))
        del known[first:]
        known.extend(digests)
        self._counts[rank] = len(known)

    def set_count(self, rank: int, count: int) -> None:
        """Say how many lines a rank has, when lines are not folded."""
        self._counts[rank] = count

    # ---- laying out ----

    def layout(self, silent: Container[int] = ()) -> None:
        """Make rows of all lines that are here; the newest are laid out again next time.

        Args:
            silent: ranks that have printed nothing for a while: when one is far behind, it is not waited for.
        """
        for _ in self.lay_out(silent):
            pass

    def lay_out(self, silent: Container[int] = ()) -> Iterator[None]:
        """As `layout`, and yield after some milliseconds of work each."""
        del self._segments[self._settled :]
        del self._first_rows[self._settled + 1 :]
        for lines, numbers in self._begins.values():
            kept = bisect_left(numbers, self._settled)
            del lines[kept:], numbers[kept:]
        at = {rank: self._settled_at.get(rank, 0) for rank in sorted(self._counts)}
        settling, window, patience = True, _LARGEST, replace(self._patience)
        while active := [rank for rank in at if at[rank] < self._counts[rank]]:
            most = min(self._counts[rank] - at[rank] for rank in active)
            if settling and (closed := self._closed(at, active, silent)) > 0:
                most = min(most, closed)
            else:
                settling = False
            segment = self._segment(active, at, most, window, patience.skipped)
            patience.note(segment)
            patience.judge(len(active))
            window = min(_LARGEST, 2 * window) if len(segment.ranks) == len(active) else _SMALLEST
            for rank in segment.ranks:
                lines, numbers = self._begins.setdefault(rank, ([], []))
                lines.append(at[rank])
                numbers.append(len(self._segments))
                at[rank] += segment.count
            self._segments.append(segment)
            self._first_rows.append(self._first_rows[-1] + segment.total)
            if settling:
                self._settled, self._settled_at = len(self._segments), dict(at)
                self._patience = replace(patience)
            if len(self._segments) % _SEGMENTS_AT_ONCE == 0:
                yield

    def _closed(self, at: Mapping[int, int], active: Sequence[int], silent: Container[int]) -> int:
        """Return how many lines from here on will stay as they are, whatever comes."""
        left = {rank: self._counts[rank] - at[rank] for rank in active}
        closed = min(left.values()) - OPEN_LINES
        if behind := at.keys() - left.keys():
            closed = min(closed, max(left.values()) - BEHIND_LINES) if all(each in silent for each in behind) else 0
        return closed

    def _segment(self, active: Sequence[int], at: Mapping[int, int], most: int, window: int, skipped: int) -> _Segment:
        """Return the next segment: of all active ranks, or what some of them print and the others do not.

        Args:
            skipped: so many lines are taken to be in step.
        """
        ranks, starts = tuple(active), tuple(at[rank] for rank in active)
        if not self._fold or len(ranks) == 1:
            return _Segment(ranks, starts, most, len(ranks))
        if equal := self._equal_lines(ranks, starts, most):
            return _Segment(ranks, starts, equal, 1)
        if skipped:
            return self._in_step_segment(ranks, starts, min(most, skipped, _LARGEST))
        lines = [self._digests[rank][start : start + window] for rank, start in zip(ranks, starts, strict=True)]
        anchors = [_unique(each) for each in lines]
        in_step = min(most, window, _in_step(anchors))
        if in_step > 0:
            return self._in_step_segment(ranks, starts, in_step)
        ahead, count = _own_lines(lines, anchors)
        count = min(count, most)
        own = [index for index, each in enumerate(lines) if each[:count] == lines[ahead][:count]]
        return _Segment(tuple(ranks[index] for index in own), tuple(starts[index] for index in own), count, 1)

    def _in_step_segment(self, ranks: tuple[int, ...], starts: tuple[int, ...], count: int) -> _Segment:
        """Return a segment in which lines stand side by side; equal ones are one row."""
        lines = (self._digests[rank][start : start + count] for rank, start in zip(ranks, starts, strict=True))
        counts = [len(set(each)) for each in zip(*lines, strict=True)]
        if min(counts) == max(counts):
            return _Segment(ranks, starts, count, counts[0])
        return _Segment(ranks, starts, count, array("Q", accumulate(counts, initial=0)))

    def _equal_lines(self, ranks: Sequence[int], starts: Sequence[int], most: int) -> int:
        """Return how many lines from here on are equal on all of the ranks."""
        digests = [self._digests[rank] for rank in ranks]

        def equal(count: int) -> bool:
            first = digests[0][starts[0] : starts[0] + count]
            return all(each[start : start + count] == first for each, start in zip(digests, starts, strict=True))

        step = 1
        while step < most and equal(step):
            step *= 4
        low, high = step // 4, min(step, most)
        if equal(high):
            return high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if equal(middle) else (low, middle)
        return low

    # ---- rows ----

    def rows(self, first: int, count: int) -> Iterator[Row]:
        """Yield rows `first` to `first + count`, as far as there are so many."""
        last = min(first + count, len(self))
        number = bisect_right(self._first_rows, first) - 1
        while first < last:
            segment, base = self._segments[number], self._first_rows[number]
            index, starts = segment.index_of(first - base), dict(zip(segment.ranks, segment.starts, strict=True))
            while index < segment.count and first < last:
                groups = self._groups(segment, index)
                skipped = first - base - segment.rows_before(index)
                for members in groups[skipped : skipped + last - first]:
                    yield Row(members, tuple(starts[rank] + index for rank in members))
                    first += 1
                index += 1
            number += 1

    def _groups(self, segment: _Segment, index: int) -> list[tuple[int, ...]]:
        if segment.rows == 1:
            return [segment.ranks]
        if not self._fold:
            return [(rank,) for rank in segment.ranks]
        groups: dict[int, list[int]] = {}
        for rank, start in zip(segment.ranks, segment.starts, strict=True):
            groups.setdefault(self._digests[rank][start + index], []).append(rank)
        return [tuple(members) for members in groups.values()]

    def row_of(self, rank: int, line: int) -> int:
        """Return the row that a rank's line is in, or the number of rows when it is none of those here."""
        if line >= self.count(rank):
            return len(self)
        lines, numbers = self._begins[rank]
        place = bisect_right(lines, line) - 1
        segment, base = self._segments[numbers[place]], self._first_rows[numbers[place]]
        index = line - lines[place]
        groups = self._groups(segment, index)
        return base + segment.rows_before(index) + next(row for row, members in enumerate(groups) if rank in members)


def _unique(lines: array[int]) -> dict[int, int]:
    """Return where each line is that is there once: lines that come again and again say nothing about the place."""
    places = dict(zip(lines, range(len(lines)), strict=True))
    if len(places) < len(lines):
        for line, count in Counter(lines).items():
            if count > 1:
                del places[line]
    return places


def _in_step(anchors: Sequence[Mapping[int, int]]) -> int:
    """Return for how many lines no rank has a line sooner or later than another one, as far as they reach."""
    seen, first = dict(anchors[0]), _LARGEST
    for places in anchors[1:]:
        for line in seen.keys() & places.keys():
            here, there = seen[line], places[line]
            if here != there and abs(here - there) <= REACH_LINES:
                first = min(first, here, there)
        seen.update(places)
    return first


def _own_lines(lines: Sequence[array[int]], anchors: Sequence[Mapping[int, int]]) -> tuple[int, int]:
    """Return who prints most briefly what others do not, before the line at which one of those is; and how much."""
    next_lines = {each[0] for each in lines}
    found = (
        (distance, index)
        for index, places in enumerate(anchors)
        for line in next_lines & places.keys()
        if 0 < (distance := places[line]) <= REACH_LINES
    )
    count, ahead = min(found)
    return ahead, count
