"""Where a rank's new row goes: the alignment of ranks that print alike.

Every row has a position, and so has every rank: its newest row's. A new line of a rank goes to

1. the first row after the rank's position that holds the very same line: the rank joins it;
2. else beside the first line there that differs in its digits only (`loss 2.31`, `loss 2.35`), as a row of its own;
3. else to the next line, as a row of its own. When the rank then goes on with a line that others have right there, its
   own row was one more than theirs: it moves before that line.

So the order of each rank is always kept, and ranks that arrive one after the other look like ranks that arrive
interleaved. Rows older than a second or so are closed for 2 and 3: what came much later stands later.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import cast

from monarch_nb.notebook.output.rows import Position, Row, TextRow, position_of

WINDOW_S = 0.5
_MAX_FRESH_ROWS = 8
_MIN_PLACES = 4_000
_RECENT_ROWS = 8
LAST_ROWS_OF_ALL = 256
"""Among dropped rows the newest of every rank stay: so many in all."""
NEAR_ROWS = 8
"""A line of few characters joins no row that is further ahead."""


class Cursor:
    """Where a rank is, or several ranks that have been at the same places lately.

    Attributes:
        ranks: bit set of them.
        position: of its newest row.
        following: its newest row was found beside others'.
        recent: its newest rows, and where it was before each.
    """

    __slots__ = ("_anchor", "_fresh", "_novel", "following", "position", "ranks", "recent")

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.position: Position = (0, 0)
        self.following = False
        self.recent: deque[tuple[Row, Position]] = deque(maxlen=_RECENT_ROWS)
        self._novel = False
        self._anchor: Position = (0, 0)  # where it was before its fresh rows
        self._fresh: list[tuple[Row, Hashable]] = []  # its newest rows, unlike any other rank's, with their variants

    @property
    def has_fresh(self) -> bool:
        """Whether its newest rows are unlike any other rank's."""
        return bool(self._fresh)

    def enter(self, row: Row, variant: Hashable = None) -> None:
        """Add the ranks to `row`, which `Places` found or placed for them."""
        self.recent.append((row, self.position))
        if not self._novel:
            self._fresh.clear()
        else:
            if not self._fresh:
                self._anchor = self.position
            self._fresh.append((row, variant))
            if len(self._fresh) > _MAX_FRESH_ROWS:
                self._fresh.clear()
        row.ranks |= self.ranks
        self.position = row.position

    @property
    def is_alike(self) -> bool:
        """Whether its ranks wrote the same in its newest rows."""
        return not any(isinstance(row, TextRow) and not row.is_alike for row, _ in self.recent)

    def forget(self) -> None:
        """Forget its newest rows: they are gone, or are not to be moved."""
        self.recent.clear()
        self._fresh.clear()

    def split(self, other: Cursor) -> None:
        """Let the ranks of `other`, a new one, go their own way from here."""
        self.ranks &= ~other.ranks
        other.position, other.following, other._novel = self.position, self.following, self._novel
        other._anchor, other.recent, other._fresh = self._anchor, self.recent.copy(), self._fresh.copy()

    def join(self, other: Cursor) -> bool:
        """Take in the ranks of `other`, if they have been at the same places lately; return whether that is so."""
        if self.position != other.position or self.recent != other.recent:
            return False
        self.ranks |= other.ranks
        self.following &= other.following
        self._fresh.clear()
        return True


class Places:
    """All rows by what they hold."""

    def __init__(self) -> None:
        self.last = 0  # highest line number of any row
        self.closed = 0  # rows up to this line number are older than the window
        self._mark, self._mark_s = 0, 0.0
        self._rows: dict[Hashable, list[Row]] = {}  # by key, in order of position
        self._variants: dict[Hashable, list[Position]] = {}  # where there are rows that differ in their digits only
        self._count, self._most = 0, _MIN_PLACES  # places in all variants; those of rows that are gone go beyond it

    def close_old(self, now_s: float) -> None:
        """Close the rows that are older than the window."""
        age_s = now_s - self._mark_s
        if age_s >= WINDOW_S:
            self.closed = max(self.closed, self._mark if age_s < 2 * WINDOW_S else self.last)
            self._mark, self._mark_s = self.last, now_s

    def follow(self, cursor: Cursor, keys: Sequence[Hashable], at: int) -> list[TextRow]:
        """Let a rank that has no fresh rows enter those that its lines of these keys join, from `at` on, as long as
        each is near and the newest row of its key: it is nearly always, and soon known."""
        position, ranks, rows_of, entered = cursor.position, cursor.ranks, self._rows.get, []
        for index in range(at, len(keys)):
            rows = rows_of(keys[index])
            if not rows:
                break
            row = rows[-1]
            place = row.position
            is_next = position < place and place[0] <= position[0] + NEAR_ROWS and row.ranks
            if not is_next or (len(rows) > 1 and rows[-2].position > position):
                break
            row.ranks |= ranks
            position = place
            entered.append(row)
        if entered:
            before = [cursor.position, *map(position_of, entered[-1 - _RECENT_ROWS : -1])]
            newest = entered[-_RECENT_ROWS:]
            cursor.recent.extend(zip(newest, before[-len(newest) :], strict=True))
            cursor.position, cursor.following = position, True
        return cast("list[TextRow]", entered)

    def find(self, cursor: Cursor, key: Hashable, reach: int) -> Row | None:
        """Return the row that the rank joins, at most `reach` lines ahead; None when there is none."""
        rows = self._rows.get(key)
        cursor._novel = False
        if not rows or rows[-1].position <= (cursor._anchor if cursor._fresh else cursor.position):
            return None
        row = _after(rows, cursor._anchor, cursor._anchor[0] + reach) if cursor._fresh else None
        if row is not None and row.position <= cursor.position:
            own = row.ranks & cursor.ranks
            row = row if not own and self._rewind(cursor, row.position) else None
        if row is None:
            row = _after(rows, cursor.position, cursor.position[0] + reach)
        if row is not None:
            cursor.following = True
        return row

    def living(self, key: Hashable, position: Position) -> Row | None:
        """Return the row of a key at a position."""
        return next((row for row in self._rows.get(key, ()) if row.ranks and row.position == position), None)

    def place(self, cursor: Cursor, variant: Hashable, reach: int) -> Position:
        """Return where a row goes that no other rank has: beside a variant at most `reach` lines ahead, or apart."""
        place = self._beside(cursor, variant, reach)
        cursor.following = place is not None
        cursor._novel = place is None
        if place is None:
            place = (max(cursor.position[0], self.closed) + 1, 0)
            self._add_variant(variant, place)
        return place

    def insert(self, row: Row) -> None:
        """Take in a new row."""
        self.last = max(self.last, row.position[0])
        rows = self._rows.setdefault(row.key, [])
        if not rows or rows[-1].position <= row.position:
            rows.append(row)
        else:
            insort(rows, row, key=position_of)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Forget rows of these keys that are gone."""
        for key in keys:
            living = [row for row in self._rows.get(key, ()) if row.ranks]
            if living:
                self._rows[key] = living
            else:
                self._rows.pop(key, None)

    def _beside(self, cursor: Cursor, variant: Hashable, reach: int) -> Position | None:
        places = self._variants.get(variant)
        if not places:
            return None
        if cursor._fresh and all(variant != other for _, other in cursor._fresh):
            place = _next(places, max(cursor._anchor, (self.closed, 0)), reach)
            if place and (place > cursor.position or self._rewind(cursor, place)):
                return place
        return _next(places, max(cursor.position, (self.closed, 0)), reach)

    def _rewind(self, cursor: Cursor, place: Position) -> bool:
        """Move the rank's fresh rows to before `place`, if they are still its own and recent."""
        line, inserted = cursor._anchor
        if place[0] <= max(line, self.closed) or any(row.ranks != cursor.ranks for row, _ in cursor._fresh):
            return False
        for row, variant in cursor._fresh:
            inserted += 1
            self._rows[row.key].remove(row)
            if row.position in self._variants.get(variant, ()):
                self._variants[variant].remove(row.position)
            row.position = (line, inserted)
            self.insert(row)
            self._add_variant(variant, row.position)
        cursor.position = (line, inserted)
        cursor.forget()
        return True

    def _add_variant(self, variant: Hashable, place: Position) -> None:
        if self._count >= self._most:
            self._forget_places()
        self._count += 1
        insort(self._variants.setdefault(variant, []), place)

    def _forget_places(self) -> None:
        """Forget the places of rows that are gone. As many as are left come before the next time: where no row goes,
        a line costs the same in a long flood."""
        living = {row.position for rows in self._rows.values() for row in rows if row.ranks}
        kept = {each: [place for place in places if place in living] for each, places in self._variants.items()}
        self._variants = {each: places for each, places in kept.items() if places}
        self._count = sum(map(len, self._variants.values()))
        self._most = max(_MIN_PLACES, 2 * self._count)


def _after(rows: list[Row], after: Position, last_line: int) -> Row | None:
    """Return the first living row after a position, but not after `last_line`."""
    first = len(rows) - 1  # nearly always the last is the one
    if (first and rows[first - 1].position > after) or rows[first].position <= after:
        first = bisect_right(rows, after, key=position_of)
    for index in range(first, len(rows)):
        row = rows[index]
        if row.position[0] > last_line:
            return None
        if row.ranks:
            return row
    return None


def _next(places: list[Position], after: Position, reach: int) -> Position | None:
    if places[-1] <= after:
        return None
    place = places[bisect_right(places, after)]
    return place if place[0] <= after[0] + reach else None
