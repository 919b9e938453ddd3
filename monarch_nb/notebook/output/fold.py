"""Events of a run become rows by rank set: what several ranks print alike is one row. Pure: no I/O, no clock.

Memory is bounded: the rows in the middle are dropped and counted, and so are displays beyond a few.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from monarch_nb.client.connections.events import (
    Display,
    Elided,
    ElidedOfMany,
    Event,
    Finished,
    LinesOfMany,
    Notice,
    Restart,
    Result,
    Stream,
    Text,
    TextOfMany,
)
from monarch_nb.errors import RankFailure, RunFailed
from monarch_nb.lines.packing import LineOfMany, lines_of_many
from monarch_nb.lines.templates import FoldBy, default_fold, keys_of
from monarch_nb.notebook.output.blocks import BLOCK_S, blocks_of, shown_parts, without_begun
from monarch_nb.notebook.output.lanes import Flood, Lane, Lanes
from monarch_nb.notebook.output.placing import LAST_ROWS_OF_ALL, NEAR_ROWS, Places
from monarch_nb.notebook.output.rows import (
    END,
    DisplayRow,
    ElidedRow,
    NoteRow,
    Position,
    ResultGroup,
    Row,
    TextRow,
    bits,
    displays_beyond,
    gap_of,
    members,
    newest_of_each,
    order,
    position_of,
    put_all,
    shown_of,
    size_of,
)
from monarch_nb.notebook.output.terminal import MAX_LINE_CHARACTERS, CutLine, goes_up, whole_lines

HEAD_ROWS, TAIL_ROWS = 200, 800
STAYING_ROWS = 20
"""So many rows between these stay because a rank has nan or inf there where others have numbers: the first ones."""
_SLACK_ROWS = 1_000
_FLOOD_S, _FLOOD_LINES = 1.0, 2_000
_SHORT_CHARACTERS = 4
_MAX_END_LINES = 20_000
MAX_TEXTS = 200_000
"""Of rows whose ranks wrote different lines so many are kept; of older rows only what is shown of them."""
_MANY_TEXTS = 150_000
"""Rows are settled, which takes time, only if so many lines are left after rows in the middle were dropped: those of
128 ranks are fewer."""
_UNSETTLED_ROWS = 50
_LINE_BYTES = 200

_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789"))


class Fold:
    """The output of one run.

    Attributes:
        ended: bit set of the ranks that have finished.
        finished: whether the run is over.
        notices: what monarch_nb has to say, by key.
        failures: of failed ranks, by rank.
        unasked: bit set of ranks whose values are not shown.
        has_cut_lines: of some line only the beginning is kept.

    Example:
        >>> fold = Fold([0, 1])
        >>> for rank in (0, 1):
        ...     fold.add(Text(rank, "stdout", f"hello\\nI am {rank}\\n"))
        >>> [(members(row.ranks), row.text) for row in fold.rows()]
        [((0, 1), 'hello'), ((0,), 'I am 0'), ((1,), 'I am 1')]
    """

    def __init__(
        self,
        ranks: Iterable[int],
        by: FoldBy | None = None,
        *,
        longest: int = MAX_LINE_CHARACTERS,
        drops: bool = True,
    ) -> None:
        """Make an empty one.

        Args:
            by: in what lines of one row may differ; None for what is usual on so many ranks.
            longest: of longer lines so many characters are kept.
            drops: False where all rows are taken soon, and none may be missing.
        """
        self._longest, self.has_cut_lines, self._drops = longest, False, drops
        self._lanes = Lanes(ranks, self._recall, longest)
        self._by: FoldBy = by or default_fold(len(self._lanes))
        self._texts = 0  # about so many lines are kept that differ from their rows'
        self.ended = 0
        self.finished = False
        self.notices: dict[str, str] = {}
        self.failures: dict[int, RankFailure] = {}
        self.unasked = 0
        self._results: dict[bytes, ResultGroup] = {}
        self._rows: list[Row] = []
        self._places = Places()
        self._displays: dict[tuple[int, str], list[DisplayRow | ElidedRow]] = {}
        self._sequence, self._now_s = 0, 0.0
        self._dropped: Counter[int] = Counter()  # lines in the gap, by rank set
        self._dropped_displays: Counter[int] = Counter()
        self._staying: list[TextRow] = []
        self._gap_begin: Position = (END, 0)
        self._gap_end: Position = (0, 0)

    @property
    def ranks(self) -> int:
        """Bit set of the run's ranks."""
        return self._lanes.ranks

    @property
    def size_bytes(self) -> int:
        """About how much memory its lines and displays take."""
        displays = sum(row.size_bytes for row in self._rows if isinstance(row, DisplayRow) and row.ranks)
        return displays + _LINE_BYTES * (len(self._rows) + self._texts)

    # ---- events ----

    def add(self, event: Event, now_s: float = 0.0) -> None:
        """Take in an event that came at `now_s` (any clock; always 0 means "all at once")."""
        self._places.close_old(now_s)
        self._now_s = now_s
        match event:
            case Text():
                self._add_text(self._lanes.alone(event.rank), event.stream, event.text)
            case TextOfMany():
                self._add_text_of_many(event)
            case LinesOfMany():
                self._add_lines_of_many(event)
            case Elided():
                self._add_elided(self._lanes.alone(event.rank), event, now_s)
            case ElidedOfMany():
                for part in event.parts():
                    self._add_elided(self._lanes.alone(part.rank), part, now_s)
            case Display():
                self._add_display(self._lanes.alone(event.rank), event)
            case Result():
                self._add_result(event)
            case Notice():
                self.notices.pop(event.key, None)
                if event.text:
                    self.notices[event.key] = event.text
            case Restart():
                self._flush_all()
                self._bar(event.text)
            case Finished():
                self.finished = True
                self._flush_all()
                self._fold_end()

    def _add_text_of_many(self, event: TextOfMany) -> None:
        if self._by == "off":
            self._add_parts(event.parts())
            return
        added = []
        for lane in self._lanes.of(event.ranks):
            if (goes_up(event.text) or lane.is_within_code) and not lane.is_alike:
                self._add_parts(Text(rank, event.stream, event.text) for rank in members(lane.ranks))
            else:
                self._add_text(lane, event.stream, event.text)
                added.append(lane)
        self._lanes.join(added)

    def _add_lines_of_many(self, event: LinesOfMany) -> None:
        lines = self._lines_of_many(event) if self._by == "numbers" else None
        if lines is None:
            self._add_parts(event.parts())
            return
        added = []
        for lane in self._lanes.of(event.ranks):
            if not lane.is_between_lines:
                self._add_parts(map(event.part, members(lane.ranks)))
                continue
            first, lane.lines, lane.came_s = lane.lines, lane.lines + len(lines), self._now_s
            own = [line.seen_from(lane.number) if isinstance(line, LineOfMany) else line for line in lines]
            self._add_lines(lane, event.stream, own, first)
            added.append(lane)
        self._lanes.join(added)

    def _lines_of_many(self, event: LinesOfMany) -> list[str] | None:
        return lines_of_many(event.ranks, event.columns, whole_lines(event.text, self._longest))

    def _add_parts(self, parts: Iterable[Text]) -> None:
        for part in parts:
            self._add_text(self._lanes.alone(part.rank), part.stream, part.text)

    def _add_text(self, lane: Lane, stream: Stream, text: str) -> None:
        if lane.clear_next:
            self._clear(lane)
        first, lane.lines = lane.lines, lane.lines + text.count("\n")
        screen = self._lanes.screen(lane, stream)
        if screen.is_blank:
            lane.came_s = self._now_s
        lines = screen.write(text)
        if lines and lane.came_s != self._now_s:
            self._add_lines(lane, stream, lines[:1], first)
            lane.came_s, lines, first = self._now_s, lines[1:], first + 1
        self._add_lines(lane, stream, lines, first)

    def _add_lines(self, lane: Lane, stream: Stream, lines: Sequence[str], first: int) -> None:
        """Add finished lines, of which the first has that number: nearly all of them follow others' rows."""
        if not lines:
            return
        if self._is_one_written_whole and not lane.flood:
            self._add_one_by_one(lane, stream, lines, first)
            return
        keys, at = self._keys(lane, stream, lines), 0
        is_late, lane.line_s = lane.came_s - lane.line_s > BLOCK_S, lane.came_s
        while at < len(lines):
            if lane.is_steady and lane.position >= self._gap_end:
                followed = self._places.follow(lane, keys, at)
                if is_late and followed and not at:
                    followed[0].late |= lane.ranks
                put_all(followed, lane.ranks, lines, at, first)
                self._texts += len(followed)
                at += len(followed)
            if at < len(lines):
                row = self._add_line(lane, stream, lines[at], keys[at], first + at)
                if is_late and not at and isinstance(row, TextRow):
                    row.late |= lane.ranks
                at += 1
        if self._texts > MAX_TEXTS:
            self._bound_texts()

    @property
    def _is_one_written_whole(self) -> bool:
        """Whether no line shares a row or goes before another: a single rank writes, and nothing is dropped."""
        return not self._drops and len(self._lanes) == 1

    def _add_one_by_one(self, lane: Lane, stream: Stream, lines: Sequence[str], first: int) -> None:
        """Add lines, each below the one before, as nobody else writes: a pipe takes floods whole."""
        for number, text in enumerate(lines, first):
            place = (max(lane.position[0], self._places.closed) + 1, 0)
            row = TextRow(0, place, self._sequence, None, stream, text, number=number, came_s=lane.came_s)
            self._sequence += 1
            self._rows.append(row)
            lane.enter(row)
        self._places.last = lane.position[0]

    def _keys(self, lane: Lane, stream: Stream, lines: Sequence[str]) -> list[Hashable]:
        """Return what lines have in common with those that may share their rows."""
        if self._by == "off":
            alike: Sequence[Hashable] = (lane.number,) * len(lines)
        else:
            alike = keys_of(lines, self._by)
        if max(map(len, lines), default=0) <= self._longest:
            return [(stream, each) for each in alike]
        self.has_cut_lines = True
        digests = (line.digest if isinstance(line, CutLine) else 0 for line in lines)
        return [
            (stream, each, digest) if digest else (stream, each) for each, digest in zip(alike, digests, strict=True)
        ]

    def _add_line(self, lane: Lane, stream: Stream, text: str, key: Hashable, number: int) -> Row | None:
        """Add one; return its row, if it has one."""
        in_gap = lane.following and not lane.flood and self._gap_begin <= lane.position < self._gap_end
        if in_gap and lane.position[0] >= self._places.closed:
            lane.position = (lane.position[0] + 1, 0)  # in step with others' lines that were dropped
            self._dropped[lane.ranks] += 1
            lane.behind.append((stream, text, number))
            return None
        lane.behind.clear()
        reach = END if len(text) >= _SHORT_CHARACTERS else NEAR_ROWS
        row, variant = self._places.find(lane, key, reach), None
        if row is None:
            variant = (stream, text.translate(_WITHOUT_DIGITS))
            place = self._places.place(lane, variant, reach)
            row = TextRow(0, place, self._sequence, key, stream, text, number=number, came_s=lane.came_s)
            self._insert(row)
        lane.enter(row, variant)
        if isinstance(row, TextRow):
            row.put(lane.ranks, text, number)
            self._texts += len(row.texts) > 0
        if lane.flood:
            lane.flood.passing.append(row)
            if len(lane.flood.passing) > _FLOOD_LINES:
                lane.flood = None
        return row

    def _bound_texts(self) -> None:
        """Bound what is kept of rows whose ranks wrote different lines."""
        self._trim()
        rows = [row for row in sorted(self._rows, key=order) if isinstance(row, TextRow)]
        self._texts = sum(len(row.texts) for row in rows)
        for row in rows[:-_UNSETTLED_ROWS] if self._texts > _MANY_TEXTS else ():
            self._texts -= row.settle()

    def _add_elided(self, lane: Lane, event: Elided, now_s: float) -> None:
        self._flush(lane, event.stream)
        lane.lines += event.lines
        lane.behind.clear()
        flood = lane.flood
        if flood and flood.row.ranks & lane.ranks and now_s - flood.seen_s <= _FLOOD_S:
            withdrawn = 0
            for row in flood.passing:
                if row.ranks & lane.ranks:
                    row.ranks &= ~lane.ranks
                    withdrawn += 1
            flood.row.lines[lane.number] += withdrawn
            flood.seen_s, flood.passing = now_s, []
        else:
            found = self._places.find(lane, "elided", event.lines)
            if isinstance(found, ElidedRow):
                elided = found
            else:
                elided = ElidedRow(0, self._places.place(lane, "elided", event.lines), self._sequence, "elided")
                self._insert(elided)
            flood = lane.flood = Flood(elided, lane.position[0], now_s)
            lane.enter(elided)
        lane.forget()
        flood.row.lines[lane.number] += event.lines
        flood.row.size_bytes += event.size_bytes
        lane.following = False  # what comes now is the newest: not to be dropped in step with others
        lane.position = max(flood.row.position, (flood.base + flood.row.lines[lane.number], 0))

    def _add_result(self, event: Result) -> None:
        known = self._lanes.having(event.rank)
        if known is None or not known.is_between_lines:
            self._flush(self._lanes.alone(event.rank))
        self.ended |= 1 << event.rank
        if event.bundle:
            group = self._results.setdefault(
                _digest(event.bundle), ResultGroup(0, event.bundle, metadata=event.metadata)
            )
            group.ranks |= 1 << event.rank
            if event.facts:
                group.facts[event.rank] = event.facts
        if event.failure is not None:
            self.failures[event.rank] = event.failure

    def _flush(self, lane: Lane, stream: Stream | None = None) -> None:
        """Finish the open lines: something else comes after them."""
        for each, screen in lane.screens.items():
            if stream is None or each == stream:
                for line in screen.flush():
                    self._add_lines(lane, each, (line,), lane.lines)

    def _flush_all(self) -> None:
        for lane in self._lanes.each():
            self._flush(lane)
            self._bring_back(lane)

    def _bar(self, text: str) -> None:
        """Put a note below all rows: what was printed before it stays above, what comes now stands below."""
        self._fold_end()
        last = self._places.last + 1
        self._insert(NoteRow(self.ranks, (last, 0), self._sequence, None, text))
        self._places.closed = last
        for lane in self._lanes.each():
            lane.flood, lane.following = None, False
            lane.screens.clear()
            lane.forget()
            lane.position = (last, 0)

    def _recall(self, lane: Lane, stream: Stream) -> str | None:
        """Take back the rank's newest row, which it moves up to in order to rewrite it."""
        if not lane.recent:
            return None
        row, before = lane.recent[-1]
        if not isinstance(row, TextRow) or row.stream != stream or not row.ranks & lane.ranks:
            return None
        lane.recent.pop()
        row.ranks &= ~lane.ranks
        lane.position = before
        return row.text_of(lane.number)

    def _bring_back(self, lane: Lane) -> None:
        """Show the newest lines of a rank that was in step with dropped lines to the end."""
        newest = list(lane.behind)[-self._newest_of_each :]
        if not newest:
            return
        self._dropped[lane.ranks] -= len(newest)
        lane.following = False
        lane.position = max(lane.position, self._gap_end)
        for stream, text, number in newest:
            self._add_lines(lane, stream, (text,), number)

    def _fold_end(self) -> None:
        """Fold the lines after the gap once more, from the end backwards: there, ranks that come seconds apart do not
        meet, because the lines that would have brought them into step were dropped.
        """
        if not self._dropped:
            return
        self._trim()
        rows = sorted(self._rows, key=order)
        begin = max([self._gap_begin, *(row.position for row in rows if not isinstance(row, TextRow))])
        lines = [row for row in rows if isinstance(row, TextRow) and row.position > begin]
        if len({row.key for row in lines}) == len(lines) or any(row.is_settled for row in lines):
            return
        if sum(row.ranks.bit_count() for row in lines) > _MAX_END_LINES:
            return
        ends = {rank: [row for row in lines if row.ranks >> rank & 1] for rank in members(self.ranks)}
        again = Fold(members(self.ranks), self._by, longest=self._longest)
        for rank, of_rank in sorted(ends.items(), key=lambda end: -len(end[1])):
            for row in reversed(of_rank):
                again._add_lines(again._lanes.alone(rank), row.stream, (row.text_of(rank),), row.number_of(rank))
        if again._dropped or len(again._rows) >= len(lines):
            return
        for row in lines:
            row.ranks = 0
        self._purge()
        last = self._places.last + len(again._rows)
        backwards = {position: place for place, position in enumerate(sorted({row.position for row in again._rows}))}
        for made in again._rows:
            made.position = (last - backwards[made.position], 0)
            self._insert(made)
        for lane in self._lanes.each():
            lane.forget()
            lane.position = (last, 0)

    # ---- displays ----

    def _add_display(self, lane: Lane, event: Display) -> None:
        if event.kind == "update" and self.shows_display(event):
            self._update_display(lane, event)
            return
        if event.kind == "clear" and event.data.get("wait"):
            lane.clear_next = True
            return
        if event.kind == "clear" or lane.clear_next:
            self._clear(lane)
        if event.kind == "clear":
            return
        self._flush(lane)
        lane.flood = None
        lane.behind.clear()
        key, variant = _digest([event.data, event.metadata]), tuple(sorted(event.data))
        found = self._places.find(lane, key, END)
        if isinstance(found, DisplayRow):
            row = found
        else:
            row = self._insert_display(self._places.place(lane, variant, END), event, key)
        lane.enter(row, variant)
        if event.display_id:
            shown = self._displays.get((event.rank, event.display_id), [])
            self._displays[event.rank, event.display_id] = [*(each for each in shown if each.ranks & lane.ranks), row]
        self._bound_displays()

    def shows_display(self, update: Display) -> bool:
        """Return whether what it updates is here, be it among what is not kept; else it is shown as a new one."""
        shown = self._displays.get((update.rank, update.display_id or ""), ())
        return any(row.ranks >> update.rank & 1 for row in shown)

    def _update_display(self, lane: Lane, event: Display) -> None:
        shown = self._displays.get((lane.number, event.display_id or ""), [])
        key = _digest([event.data, event.metadata])
        for index, row in enumerate(shown):
            if not row.ranks & lane.ranks or isinstance(row, ElidedRow):
                continue  # dropped, or not kept
            self._leave(row, lane)
            same = self._places.living(key, row.position)
            shown[index] = same if isinstance(same, DisplayRow) else self._insert_display(row.position, event, key)
            shown[index].ranks |= lane.ranks
        self._bound_displays()

    def _insert_display(self, position: Position, event: Display, key: bytes) -> DisplayRow:
        row = DisplayRow(0, position, self._sequence, key, event.data, event.metadata, size_of(event.data))
        self._insert(row)
        return row

    def _bound_displays(self) -> None:
        """Keep the first few displays and the newest; of the others only say what they were."""
        beyond = displays_beyond([row for row in self._rows if isinstance(row, DisplayRow) and row.ranks])
        if not beyond:
            return
        elided: dict[Row, ElidedRow] = {}
        for row in beyond:
            what = ElidedRow(row.ranks, row.position, row.sequence, None, displays=Counter(members(row.ranks)))
            what.text = str(row.data.get("text/plain", ""))[:200].partition("\n")[0]
            self._rows.append(what)
            elided[row] = what
            row.ranks, row.data = 0, {}
        displays = {key: [elided.get(row, row) for row in rows] for key, rows in self._displays.items()}
        self._displays = {key: rows for key, rows in displays.items() if any(row.ranks for row in rows)}

    def _clear(self, lane: Lane) -> None:
        """As clear_output: nothing stays of what the rank showed."""
        lane.clear_next, lane.flood = False, None
        lane.screens.clear()
        lane.behind.clear()
        lane.forget()
        for row in self._rows:
            if row.ranks & lane.ranks:
                self._leave(row, lane)
        for counts in (self._dropped, self._dropped_displays):
            for ranks in [ranks for ranks in counts if ranks & lane.ranks]:
                counts[ranks & ~lane.ranks] += counts.pop(ranks)
            del counts[0]

    @staticmethod
    def _leave(row: Row, lane: Lane) -> None:
        row.ranks &= ~lane.ranks
        if isinstance(row, DisplayRow) and not row.ranks:
            row.data = {}
        if isinstance(row, ElidedRow):
            del row.lines[lane.number], row.displays[lane.number]

    # ---- bounded memory ----

    def _insert(self, row: Row) -> None:
        """Take in a new row. The caller adds its ranks."""
        if self._drops and len(self._rows) >= HEAD_ROWS + TAIL_ROWS + _SLACK_ROWS:
            self._trim()
        self._sequence += 1
        self._rows.append(row)
        self._places.insert(row)

    def _trim(self) -> None:
        """Drop and count what is neither at the beginning, nor at the end, nor the newest of some rank, and must not be
        overlooked either."""
        rows = sorted((row for row in self._rows if row.ranks), key=order)
        if self._drops and len(rows) > HEAD_ROWS + TAIL_ROWS:
            kept = {*map(id, newest_of_each(rows, self.ranks, self._newest_of_each)), *map(id, self._staying)}
            for row in rows[HEAD_ROWS:-TAIL_ROWS]:
                if id(row) not in kept and not self._stays(row):
                    self._drop(row)
            self._gap_begin = rows[HEAD_ROWS - 1].position
        self._purge()

    def _stays(self, row: Row) -> bool:
        if len(self._staying) == STAYING_ROWS or not isinstance(row, TextRow) or not row.must_stay:
            return False
        self._staying.append(row)
        return True

    @property
    def _newest_of_each(self) -> int:
        return max(1, LAST_ROWS_OF_ALL // len(self._lanes))

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
        self._places.forget({row.key for row in self._rows if not row.ranks and row.key is not None})
        self._rows = [row for row in self._rows if row.ranks]

    # ---- what to show ----

    def rows(self) -> list[Row]:
        """Return what to show, in order: finished rows, a gap where many were dropped, then the lines still open."""
        finished = shown_parts(blocks_of(self._kept()))
        return [*shown_of(itertools.chain(finished, self._lanes.open_rows(self._by)))]

    def _kept(self) -> list[Row]:
        """Return the finished rows, in order, and the gap."""
        if len(self._rows) > HEAD_ROWS + TAIL_ROWS:
            self._trim()
        rows = sorted((row for row in self._rows if row.ranks), key=order)
        if self._dropped or self._dropped_displays:
            gap = gap_of(self._gap_begin, self._dropped, self._dropped_displays)
            rows.insert(bisect_right(rows, self._gap_begin, key=position_of), gap)
        return rows

    def take(self, now_s: float = 0.0) -> list[Row]:
        """Remove and return the rows that no rank can come before or join any more, for output that only grows; of a
        block all or none.
        """
        self._places.close_old(now_s)
        last = max((lane.position for lane in self._lanes.each()), default=(0, 0))
        waiting = [lane.waits_at(now_s) for lane in self._lanes.each() if lane.ranks & ~self.ended]
        settled = last if self.finished else max((self._places.closed, END), min(waiting, default=last))
        kept = self._kept()
        blocks = [[(row, row.ranks)] for row in kept] if self._is_one_written_whole else blocks_of(kept)
        taken = [block for block in blocks if block[-1][0].position <= settled]
        if not self.finished:
            taken = without_begun(taken, now_s)
        copies = [replace(row) for row in shown_of(shown_parts(taken))]
        for row, ranks in itertools.chain.from_iterable(taken):
            row.ranks &= ~ranks
        if settled >= self._gap_begin:
            self._dropped.clear()
            self._dropped_displays.clear()
            for lane in self._lanes.each():
                lane.behind.clear()
            self._gap_begin, self._gap_end = (END, 0), (0, 0)
        self._purge()
        self._places.closed = max(self._places.closed, settled[0])
        return copies

    def waiting(self) -> bool:
        """Return whether there are rows that were not taken."""
        return any(row.ranks for row in self._rows)

    def results(self) -> list[ResultGroup]:
        """Return the results, equal ones once, in the order of their first ranks."""
        return sorted(self._results.values(), key=lambda group: group.ranks & -group.ranks)

    def without_value(self) -> int:
        """Return the bit set of the ranks that have ended well and returned None; not of those that nobody asks."""
        others = functools.reduce(operator.or_, (group.ranks for group in self._results.values()), self.unasked)
        return self.ended & ~others & ~bits(self.failures)

    def failure_groups(self) -> list[tuple[list[int], RankFailure]]:
        """Return the failures, equal ones once, with their ranks."""
        return RunFailed(failures=list(self.failures.values())).groups()


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=16).digest()
