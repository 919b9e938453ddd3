"""Events of a run become rows by rank set: what several ranks print alike is one row. Pure: no I/O, no clock.

Every row has a position, and so has every rank: its newest row's. A new line of a rank goes to

1. the first row after the rank's position that holds the very same line: the rank joins it;
2. else beside the first line there that differs in its digits only (`loss 2.31`, `loss 2.35`), as a row of its own;
3. else to a new row on the next line; before that line when one of the rank's own next lines is found there.

So the order of each rank is always kept, and ranks that arrive one after the other look like ranks that arrive
interleaved. Rows older than a second or so are closed for 2 and 3, so that lines which came much later stand later.

Memory is bounded: the rows in the middle are dropped and counted, and so are displays beyond a few.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from monarch_nb.client.events import Display, Elided, Event, Finished, Notice, Result, Stream, Text
from monarch_nb.errors import RankFailure, RunFailed
from monarch_nb.notebook.terminal import MAX_LINE_CHARACTERS, CutLine, Screen

HEAD_ROWS, TAIL_ROWS = 200, 800
_SLACK_ROWS = 1_000
_LAST_ROWS_OF_ALL = 256
"""Among dropped rows the newest of every rank stay: so many in all."""
HEAD_DISPLAYS, TAIL_DISPLAYS = 4, 16
MAX_DISPLAY_BYTES = 8_000_000
_WINDOW_S = 0.5
_FLOOD_S, _FLOOD_LINES = 1.0, 2_000
_SHORT_CHARACTERS, _SHORT_REACH = 4, 8
_LOOKAHEAD_LINES = 4
_END = 1 << 62

Position = tuple[int, int]
"""Number of the line, and number of the line put in behind it."""

_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789"))


@dataclass(slots=True, eq=False)
class Row:
    """Something shown once for a set of ranks.

    Attributes:
        ranks: bit r is set when rank r is in the set (see `members`); 0 when the row is gone.
        position, sequence: rows are shown in the order of position, first rank, sequence.
        key: what it holds, as far as equality goes; None when nobody may join it.
    """

    ranks: int
    position: Position
    sequence: int
    key: Hashable


@dataclass(slots=True, eq=False)
class TextRow(Row):
    """A line; `live` when it is still being written."""

    stream: Stream
    text: str
    live: bool = False


@dataclass(slots=True, eq=False)
class DisplayRow(Row):
    """A figure, HTML or other rich output."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    size_bytes: int


@dataclass(slots=True, eq=False)
class ElidedRow(Row):
    """What is not shown.

    Attributes:
        lines: how many lines, by rank.
        size_bytes: how much text, as far as known.
        displays: how many displays, by rank.
        text: what the display was, when it is one.
    """

    lines: Counter[int] = field(default_factory=Counter)
    size_bytes: int = 0
    displays: Counter[int] = field(default_factory=Counter)
    text: str = ""


@dataclass(slots=True)
class ResultGroup:
    """Ranks whose last expression looks the same."""

    ranks: int
    bundle: Mapping[str, Any]


@lru_cache(4096)
def members(ranks: int) -> tuple[int, ...]:
    """Return the ranks of a bit set, e.g. (0, 2) for 0b101."""
    return tuple(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def bits(ranks: Iterable[int]) -> int:
    """Return the bit set of `ranks`."""
    return sum(1 << rank for rank in set(ranks))


class _Rank:
    """Where one rank is."""

    __slots__ = ("bit", "clear_next", "flood", "following", "number", "position", "recent", "screens")

    def __init__(self, number: int) -> None:
        self.number, self.bit = number, 1 << number
        self.position: Position = (0, 0)
        self.following = False  # its last line was found beside others'
        self.recent: deque[tuple[Row, Position]] = deque(maxlen=8)  # newest rows, and where the rank was before each
        self.screens: dict[Stream, Screen] = {}
        self.clear_next = False
        self.flood: _Flood | None = None


@dataclass(slots=True)
class _Flood:
    """A rank prints faster than anyone reads: lines between two elisions are on their way out themselves."""

    row: ElidedRow
    base: int  # the rank's line number before it
    seen_s: float
    passing: list[Row] = field(default_factory=list)


class Fold:
    """The output of one run.

    Attributes:
        ranks: bit set of the run's ranks.
        ended: bit set of the ranks that have finished.
        finished: whether the run is over.
        notices: what monarch_nb has to say, by key.
        failures: of failed ranks, by rank.

    Example:
        >>> fold = Fold([0, 1])
        >>> for rank in (0, 1):
        ...     fold.add(Text(rank, "stdout", f"hello\\nI am {rank}\\n"))
        >>> [(members(row.ranks), row.text) for row in fold.rows()]
        [((0, 1), 'hello'), ((0,), 'I am 0'), ((1,), 'I am 1')]
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = {rank: _Rank(rank) for rank in ranks}
        self.ranks = bits(self._ranks)
        self.ended = 0
        self.finished = False
        self.notices: dict[str, str] = {}
        self.failures: dict[int, RankFailure] = {}
        self._results: dict[bytes, ResultGroup] = {}
        self._rows: list[Row] = []
        self._index: dict[Hashable, list[Row]] = {}  # rows by what they hold, in order of position
        self._variants: dict[Hashable, list[Position]] = {}  # where there are rows, by what they hold but for digits
        self._displays: dict[tuple[int, str], list[DisplayRow]] = {}
        self._places = 0  # in all of them
        self._sequence = 0
        self._last = 0  # highest line number of any row
        self._closed = 0  # rows up to this line number are older than the window
        self._mark, self._mark_s = 0, 0.0
        self._dropped: Counter[int] = Counter()  # lines in the gap, by rank set
        self._dropped_displays: Counter[int] = Counter()
        self._gap_begin: Position = (_END, 0)
        self._gap_end: Position = (0, 0)

    # ---- events ----

    def add(self, event: Event, now_s: float = 0.0) -> None:
        """Take in an event that came at `now_s` (any clock; always 0 means "all at once")."""
        self._close_old(now_s)
        match event:
            case Text():
                self._add_text(self._rank(event.rank), event.stream, event.text)
            case Elided():
                self._add_elided(self._rank(event.rank), event, now_s)
            case Display():
                self._add_display(self._rank(event.rank), event)
            case Result():
                self._add_result(self._rank(event.rank), event)
            case Notice():
                self.notices.pop(event.key, None)
                if event.text:
                    self.notices[event.key] = event.text
            case Finished():
                self.finished = True
                for rank in self._ranks.values():
                    self._flush(rank)

    def _rank(self, number: int) -> _Rank:
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = _Rank(number)
            self.ranks |= rank.bit
        return rank

    def _close_old(self, now_s: float) -> None:
        age_s = now_s - self._mark_s
        if age_s >= _WINDOW_S:
            self._closed = self._mark if age_s < 2 * _WINDOW_S else self._last
            self._mark, self._mark_s = self._last, now_s

    def _add_text(self, rank: _Rank, stream: Stream, text: str) -> None:
        if rank.clear_next:
            self._clear(rank)
        screen = rank.screens.get(stream)
        if screen is None:
            screen = rank.screens[stream] = Screen(lambda: self._recall(rank, stream))
        lines = screen.write(text)
        for index, line in enumerate(lines):
            self._add_line(rank, stream, line, lines, index + 1)

    def _add_line(self, rank: _Rank, stream: Stream, text: str, lines: Sequence[str] = (), next_index: int = 0) -> None:
        """Add a line; those of the same piece from `next_index` on come after it."""
        if rank.following and self._gap_begin <= rank.position < self._gap_end and rank.position[0] >= self._closed:
            rank.position = (rank.position[0] + 1, 0)  # in step with others' lines that were dropped
            self._dropped[rank.bit] += 1
            return
        key = _text_key(stream, text)
        reach = _END if len(text) >= _SHORT_CHARACTERS else _SHORT_REACH
        row = self._find(self._index.get(key), rank.position, rank.position[0] + reach)
        if row is None:
            variant = (stream, text.translate(_WITHOUT_DIGITS))
            position = self._beside(rank, variant, reach)
            if position is None:
                position = self._fresh(rank, variant, stream, lines[next_index : next_index + _LOOKAHEAD_LINES])
            row = TextRow(0, position, self._sequence, key, stream, text)
            self._insert(row)
        else:
            rank.following = True
        self._enter(rank, row)
        if rank.flood:
            rank.flood.passing.append(row)
            if len(rank.flood.passing) > _FLOOD_LINES:
                rank.flood = None

    def _add_elided(self, rank: _Rank, event: Elided, now_s: float) -> None:
        self._flush(rank, event.stream)
        flood = rank.flood
        if flood and flood.row.ranks & rank.bit and now_s - flood.seen_s <= _FLOOD_S:
            withdrawn = 0
            for row in flood.passing:
                if row.ranks & rank.bit:
                    row.ranks &= ~rank.bit
                    withdrawn += 1
            flood.row.lines[rank.number] += withdrawn
            flood.seen_s, flood.passing = now_s, []
            rank.recent.clear()
        else:
            found = self._find(self._index.get("elided"), rank.position, rank.position[0] + event.lines)
            if isinstance(found, ElidedRow):
                elided = found
            else:
                position = self._beside(rank, "elided", event.lines) or self._fresh(rank, "elided")
                elided = ElidedRow(0, position, self._sequence, "elided")
                self._insert(elided)
            flood = rank.flood = _Flood(elided, rank.position[0], now_s)
            self._enter(rank, elided)
        flood.row.lines[rank.number] += event.lines
        flood.row.size_bytes += event.size_bytes
        rank.following = False  # what comes now is the newest: not to be dropped in step with others
        rank.position = max(flood.row.position, (flood.base + flood.row.lines[rank.number], 0))

    def _add_result(self, rank: _Rank, event: Result) -> None:
        self._flush(rank)
        self.ended |= rank.bit
        if event.bundle:
            group = self._results.setdefault(_digest(event.bundle), ResultGroup(0, event.bundle))
            group.ranks |= rank.bit
        if event.failure is not None:
            self.failures[rank.number] = event.failure

    def _flush(self, rank: _Rank, stream: Stream | None = None) -> None:
        """Finish the open lines: something else comes after them."""
        for each, screen in rank.screens.items():
            if stream is None or each == stream:
                for line in screen.flush():
                    self._add_line(rank, each, line)

    def _recall(self, rank: _Rank, stream: Stream) -> str | None:
        """Take back the rank's newest row, which it moves up to in order to rewrite it."""
        if not rank.recent:
            return None
        row, before = rank.recent[-1]
        if not isinstance(row, TextRow) or row.stream != stream or not row.ranks & rank.bit:
            return None
        rank.recent.pop()
        row.ranks &= ~rank.bit
        rank.position = before
        return row.text

    # ---- displays ----

    def _add_display(self, rank: _Rank, event: Display) -> None:
        if event.kind == "update":
            self._update_display(rank, event)
            return
        if event.kind == "clear" and event.data.get("wait"):
            rank.clear_next = True
            return
        if event.kind == "clear" or rank.clear_next:
            self._clear(rank)
        if event.kind == "clear":
            return
        self._flush(rank)
        rank.flood = None
        key, variant = _digest([event.data, event.metadata]), tuple(sorted(event.data))
        found = self._find(self._index.get(key), rank.position, _END)
        if isinstance(found, DisplayRow):
            row, rank.following = found, True
        else:
            position = self._beside(rank, variant, _END) or self._fresh(rank, variant)
            row = self._insert_display(position, event, key)
        self._enter(rank, row)
        if event.display_id:
            self._displays.setdefault((rank.number, event.display_id), []).append(row)
        self._bound_displays()

    def _update_display(self, rank: _Rank, event: Display) -> None:
        shown = self._displays.get((rank.number, event.display_id or ""), [])
        key = _digest([event.data, event.metadata])
        for index, row in enumerate(shown):
            if not row.ranks & rank.bit:
                continue  # dropped
            self._leave(row, rank)
            for new in self._index.get(key, ()):
                if isinstance(new, DisplayRow) and new.ranks and new.position == row.position:
                    break
            else:
                new = self._insert_display(row.position, event, key)
            new.ranks |= rank.bit
            shown[index] = new
        self._bound_displays()

    def _insert_display(self, position: Position, event: Display, key: bytes) -> DisplayRow:
        size_bytes = sum(len(value) if isinstance(value, str) else len(str(value)) for value in event.data.values())
        row = DisplayRow(0, position, self._sequence, key, event.data, event.metadata, size_bytes)
        self._insert(row)
        return row

    def _bound_displays(self) -> None:
        """Keep the first few displays and the newest; of the others only say what they were."""
        shown = [row for row in self._rows if isinstance(row, DisplayRow) and row.ranks]
        excess = len(shown) - HEAD_DISPLAYS - TAIL_DISPLAYS
        excess_bytes = sum(row.size_bytes for row in shown) - MAX_DISPLAY_BYTES
        if excess <= 0 and excess_bytes <= 0:
            return
        shown.sort(key=_order)
        newest = shown.pop()
        for row in (*shown[HEAD_DISPLAYS:], *shown[:HEAD_DISPLAYS], newest):
            if excess <= 0 and excess_bytes <= 0:
                break
            excess, excess_bytes = excess - 1, excess_bytes - row.size_bytes
            what = ElidedRow(row.ranks, row.position, row.sequence, None, displays=Counter(members(row.ranks)))
            what.text = str(row.data.get("text/plain", ""))[:200].partition("\n")[0]
            self._rows.append(what)
            row.ranks, row.data = 0, {}
        self._displays = {key: rows for key, rows in self._displays.items() if any(row.ranks for row in rows)}

    def _clear(self, rank: _Rank) -> None:
        """As clear_output: nothing stays of what the rank showed."""
        rank.clear_next, rank.flood = False, None
        rank.screens.clear()
        rank.recent.clear()
        for row in self._rows:
            if row.ranks & rank.bit:
                self._leave(row, rank)
        for counts in (self._dropped, self._dropped_displays):
            for ranks in [ranks for ranks in counts if ranks & rank.bit]:
                counts[ranks & ~rank.bit] += counts.pop(ranks)
            del counts[0]

    @staticmethod
    def _leave(row: Row, rank: _Rank) -> None:
        row.ranks &= ~rank.bit
        if isinstance(row, DisplayRow) and not row.ranks:
            row.data = {}
        if isinstance(row, ElidedRow):
            del row.lines[rank.number], row.displays[rank.number]

    # ---- placing rows ----

    @staticmethod
    def _find(rows: list[Row] | None, after: Position, last_line: int) -> Row | None:
        """Return the first living row after a position, but not after `last_line`."""
        if not rows or rows[-1].position <= after:
            return None
        for index in range(bisect_right(rows, after, key=_position_of), len(rows)):
            row = rows[index]
            if row.position[0] > last_line:
                return None
            if row.ranks:
                return row
        return None

    def _beside(self, rank: _Rank, variant: Hashable, reach: int) -> Position | None:
        """Return where the next row is that differs from the rank's new one in its digits only."""
        after = max(rank.position, (self._closed, 0))
        places = self._variants.get(variant)
        rank.following = False
        if not places or places[-1] <= after:
            return None
        place = places[bisect_right(places, after)]
        if place[0] > after[0] + reach:
            return None
        rank.following = True
        return place

    def _fresh(self, rank: _Rank, variant: Hashable, stream: Stream = "stdout", coming: Sequence[str] = ()) -> Position:
        """Return where a row goes that no other rank has anything like.

        Args:
            coming: the rank's next lines, as far as known.
        """
        after = max(rank.position, (self._closed, 0))
        place = (after[0] + 1, 0)
        if after[0] < self._last:
            for line in coming:
                if self._find(self._index.get(_text_key(stream, line)), after, after[0] + _SHORT_REACH):
                    place = (after[0], after[1] + 1)  # the rank goes on with a line of others: make room before it
                    break
        if self._places >= 4 * (HEAD_ROWS + TAIL_ROWS):
            self._purge_variants()
        self._places += 1
        insort(self._variants.setdefault(variant, []), place)
        return place

    def _insert(self, row: Row) -> None:
        """Take in a new row. The caller adds its ranks."""
        if len(self._rows) >= HEAD_ROWS + TAIL_ROWS + _SLACK_ROWS:
            self._trim()
        self._sequence += 1
        self._last = max(self._last, row.position[0])
        self._rows.append(row)
        rows = self._index.setdefault(row.key, [])
        if not rows or rows[-1].position <= row.position:
            rows.append(row)
        else:
            insort(rows, row, key=_position_of)

    @staticmethod
    def _enter(rank: _Rank, row: Row) -> None:
        rank.recent.append((row, rank.position))
        row.ranks |= rank.bit
        rank.position = row.position

    # ---- bounded memory ----

    def _trim(self) -> None:
        """Drop and count what is neither at the beginning, nor at the end, nor the newest of some rank."""
        rows = sorted((row for row in self._rows if row.ranks), key=_order)
        if len(rows) > HEAD_ROWS + TAIL_ROWS:
            newest = set(map(id, self._newest(rows)))
            for row in rows[HEAD_ROWS:-TAIL_ROWS]:
                if id(row) not in newest:
                    self._drop(row)
            self._gap_begin = rows[HEAD_ROWS - 1].position
        self._purge()

    def _newest(self, rows: list[Row]) -> Iterator[Row]:
        each = max(1, _LAST_ROWS_OF_ALL // len(self._ranks))
        wanted = dict.fromkeys(self._ranks, each)
        hungry = self.ranks
        for row in reversed(rows):
            if fed := row.ranks & hungry:
                yield row
                for rank in members(fed):
                    wanted[rank] -= 1
                    if not wanted[rank]:
                        hungry &= ~(1 << rank)
            elif not hungry:
                return

    def _drop(self, row: Row) -> None:
        match row:
            case TextRow():
                self._dropped[row.ranks] += 1
            case DisplayRow():
                self._dropped_displays[row.ranks] += 1
                row.data = {}
            case ElidedRow():
                self._dropped.update({1 << rank: lines for rank, lines in row.lines.items()})
                self._dropped_displays.update({1 << rank: count for rank, count in row.displays.items()})
        row.ranks = 0
        self._gap_end = max(self._gap_end, row.position)

    def _purge(self) -> None:
        """Forget the rows that are gone."""
        for key in {row.key for row in self._rows if not row.ranks and row.key is not None}:
            living = [row for row in self._index[key] if row.ranks]
            if living:
                self._index[key] = living
            else:
                del self._index[key]
        self._rows = [row for row in self._rows if row.ranks]

    def _purge_variants(self) -> None:
        living = {row.position for row in self._rows if row.ranks}
        kept = {variant: [place for place in places if place in living] for variant, places in self._variants.items()}
        self._variants = {variant: places for variant, places in kept.items() if places}
        self._places = sum(map(len, self._variants.values()))

    # ---- what to show ----

    def rows(self) -> list[Row]:
        """Return what to show, in order: finished rows, a gap where many were dropped, then the lines still open."""
        if len(self._rows) > HEAD_ROWS + TAIL_ROWS:
            self._trim()
        rows = sorted((row for row in self._rows if row.ranks), key=_order)
        if self._dropped or self._dropped_displays:
            gap = ElidedRow(0, self._gap_begin, -1, None)
            for counts, by_rank in ((self._dropped, gap.lines), (self._dropped_displays, gap.displays)):
                for ranks, count in counts.items():
                    by_rank.update(dict.fromkeys(members(ranks), count))
            gap.ranks = bits((*gap.lines, *gap.displays))
            rows.insert(bisect_right(rows, self._gap_begin, key=_position_of), gap)
        return rows + self._live_rows()

    def take(self, now_s: float = 0.0) -> list[Row]:
        """Remove and return the rows that no rank can come before or join any more, for output that only grows."""
        self._close_old(now_s)
        last = max((rank.position for rank in self._ranks.values()), default=(0, 0))
        waiting = [rank.position for rank in self._ranks.values() if not self.ended & rank.bit]
        settled = last if self.finished else max((self._closed, _END), min(waiting, default=last))
        taken = [row for row in self.rows() if row.position <= settled and not (isinstance(row, TextRow) and row.live)]
        copies = [replace(row) for row in taken]
        for row in taken:
            row.ranks = 0
        if settled >= self._gap_begin:
            self._dropped.clear()
            self._dropped_displays.clear()
            self._gap_begin, self._gap_end = (_END, 0), (0, 0)
        self._purge()
        self._closed = max(self._closed, settled[0])
        return copies

    def waiting(self) -> bool:
        """Return whether there are rows that were not taken."""
        return any(row.ranks for row in self._rows)

    def results(self) -> list[ResultGroup]:
        """Return the results, equal ones once, in the order of their first ranks."""
        return sorted(self._results.values(), key=lambda group: group.ranks & -group.ranks)

    def failure_groups(self) -> list[tuple[list[int], RankFailure]]:
        """Return the failures, equal ones once, with their ranks."""
        return RunFailed(failures=list(self.failures.values())).groups()

    def _live_rows(self) -> list[Row]:
        ranks: dict[tuple[int, Stream, str], int] = {}
        for rank in self._ranks.values():
            for stream, screen in rank.screens.items():
                for depth, line in enumerate(screen.open_lines()):
                    key = (depth, stream, line)
                    ranks[key] = ranks.get(key, 0) | rank.bit
        rows = [
            TextRow(bit_set, (_END, depth), 0, None, stream, text, live=True)
            for (depth, stream, text), bit_set in ranks.items()
            if text
        ]
        return sorted(rows, key=_order)


def _position_of(row: Row) -> Position:
    return row.position


def _order(row: Row) -> tuple[Position, int, int]:
    return row.position, row.ranks & -row.ranks, row.sequence


def _text_key(stream: Stream, text: str) -> Hashable:
    return stream, text, text.digest if len(text) > MAX_LINE_CHARACTERS and isinstance(text, CutLine) else 0


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=16).digest()
