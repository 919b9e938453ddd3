"""Ranks that are at the same place go together: text of several is added once for each lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from monarch_nb.client.connections.events import Stream
from monarch_nb.lines.templates import FoldBy, key_of
from monarch_nb.notebook.output.placing import LAST_ROWS_OF_ALL, WINDOW_S, Cursor
from monarch_nb.notebook.output.rows import END, ElidedRow, Position, Row, TextRow, bits, members, order
from monarch_nb.notebook.output.terminal import Screen


@dataclass(slots=True)
class Flood:
    """A rank prints faster than anyone reads: lines between two elisions are on their way out themselves."""

    row: ElidedRow
    base: int  # the rank's line number before it
    seen_s: float
    passing: list[Row] = field(default_factory=list)


class Lane(Cursor):
    """Ranks that have written the same lately, or lines that share their rows: where they are, and what they are in
    the middle of.

    Text of several ranks is added once for each lane. A rank that writes something by itself gets a lane of its own.
    """

    __slots__ = ("behind", "came_s", "clear_next", "flood", "line_s", "lines", "screens")

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.screens: dict[Stream, Screen] = {}
        self.clear_next = False
        self.flood: Flood | None = None
        self.lines = 0  # that each of them began, as its log counts them
        self.came_s = 0.0  # when its newest line began
        self.line_s = 0.0  # when its newest finished line began
        # The newest lines since others' rows at its position were dropped, and so were these.
        self.behind: deque[tuple[Stream, str, int]] = deque(maxlen=LAST_ROWS_OF_ALL)

    @property
    def number(self) -> int:
        """The first of its ranks."""
        return (self.ranks & -self.ranks).bit_length() - 1

    @property
    def is_steady(self) -> bool:
        """Whether its next line goes after its newest one, whatever came before."""
        return not (self.flood or self.behind or self.has_fresh)

    @property
    def is_within_code(self) -> bool:
        """Whether an escape code has begun whose end has not come."""
        return any(screen.is_within_code for screen in self.screens.values())

    @property
    def is_between_lines(self) -> bool:
        """Whether it is in the middle of nothing."""
        if self.clear_next or self.flood or self.behind:
            return False
        return all(screen.is_blank for screen in self.screens.values())

    def waits_at(self, now_s: float) -> Position:
        """Return where it goes on: before what came with the beginning of a line whose end has not come, for a while,
        since `print` writes the end of its last line by itself."""
        if self.is_between_lines or now_s - self.came_s > WINDOW_S:
            return self.position
        came = (before for row, before in self.recent if isinstance(row, TextRow) and row.came_s == self.came_s)
        return next(came, self.position)


class Lanes:
    """The lane of each rank.

    Attributes:
        ranks: bit set of all ranks.
    """

    def __init__(self, ranks: Iterable[int], recall: Callable[[Lane, Stream], str | None], longest: int) -> None:
        """Make one lane of them all.

        Args:
            recall: takes back a lane's newest line, which is to be rewritten.
            longest: of longer lines so many characters are kept.
        """
        self.ranks, self._recall, self._longest = bits(ranks), recall, longest
        self._of: dict[int, Lane] = dict.fromkeys(members(self.ranks), Lane(self.ranks))

    def __len__(self) -> int:
        """How many ranks there are."""
        return len(self._of)

    def each(self) -> list[Lane]:
        """Return all lanes."""
        return list(dict.fromkeys(self._of.values()))

    def having(self, rank: int) -> Lane | None:
        """Return the lane that a rank is in; None when it is not known."""
        return self._of.get(rank)

    def alone(self, rank: int) -> Lane:
        """Return a lane of this rank and of no other."""
        lane = self._of.get(rank)
        if lane is None:
            self.ranks |= 1 << rank
            lane = self._of[rank] = Lane(1 << rank)
        return lane if lane.ranks == 1 << rank else self._split(lane, 1 << rank)

    def of(self, ranks: Iterable[int]) -> list[Lane]:
        """Return lanes of exactly these ranks."""
        left, lanes = bits(ranks), []
        while left:
            rank = (left & -left).bit_length() - 1
            lane = self._of.get(rank) or self.alone(rank)
            if lane.ranks & ~left:
                lane = self._split(lane, lane.ranks & left)
            left &= ~lane.ranks
            lanes.append(lane)
        return lanes

    def join(self, lanes: Iterable[Lane]) -> None:
        """Let lanes that are at the same place be one."""
        there: dict[tuple[int, Position], Lane] = {}
        for lane in lanes:
            if lane.is_between_lines:
                first = there.setdefault((lane.lines, lane.position), lane)
                if first is not lane and first.join(lane):
                    self._of.update(dict.fromkeys(members(lane.ranks), first))

    def open_rows(self, by: FoldBy) -> list[TextRow]:
        """Return rows for the lines that are still being written.

        Args:
            by: in what lines of one row may differ.
        """
        rows: dict[Hashable, TextRow] = {}
        for lane in self.each():
            for stream, screen in lane.screens.items():
                for depth, line in enumerate(screen.open_lines()):
                    if line:
                        key = (depth, stream, lane.number if by == "off" else key_of(line, by))
                        row = rows.setdefault(key, TextRow(0, (END, depth), 0, None, stream, line, live=True))
                        row.ranks |= lane.ranks
                        row.put(lane.ranks, line, lane.lines)
        return sorted(rows.values(), key=order)

    def screen(self, lane: Lane, stream: Stream) -> Screen:
        """Return the screen of a lane's stream."""
        screen = lane.screens.get(stream)
        if screen is None:
            screen = lane.screens[stream] = Screen(self._recalling(lane, stream), self._longest)
        return screen

    def _split(self, lane: Lane, ranks: int) -> Lane:
        """Return a lane of some ranks of one."""
        other = Lane(ranks)
        lane.split(other)
        other.lines, other.came_s, other.line_s = lane.lines, lane.came_s, lane.line_s
        other.behind = lane.behind.copy()  # only of one rank: a flood, and what is to clear
        for stream, screen in lane.screens.items():
            other.screens[stream] = screen.split(self._recalling(other, stream))
        self._of.update(dict.fromkeys(members(ranks), other))
        return other

    def _recalling(self, lane: Lane, stream: Stream) -> Callable[[], str | None]:
        return lambda: self._recall(lane, stream)
