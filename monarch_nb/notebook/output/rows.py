"""Rows: what is shown once for a set of ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

from monarch_nb.client.connections.events import Stream
from monarch_nb.lines.packing import LineOfMany
from monarch_nb.lines.spreads import Folded, spread

HEAD_DISPLAYS, TAIL_DISPLAYS = 4, 16
MAX_DISPLAY_BYTES = 8_000_000
_UNBOUNDED = re.compile(r"(?<![a-z])(?:nan|inf)(?![a-z])", re.IGNORECASE)

Position = tuple[int, int]
"""Number of the line, and number of the line put in behind it."""
END = 1 << 62
"""The number of a line after all others."""


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

    def part(self, ranks: int) -> Self:
        """Return what it shows of some of its ranks only."""
        return replace(self, ranks=ranks)


@dataclass(slots=True, eq=False)
class TextRow(Row):
    """A line; `live` when it is still being written.

    Attributes:
        text: as its first rank wrote it, or what stands for the lines of several.
        number: of the line, in the order in which a rank wrote them; see `number_of`.
        texts, numbers: those of ranks whose line or number is another one, by set of ranks, the newest last. A
            LineOfMany has what each of them wrote.
        came_s: when it began to come from its first rank.
        late: bit set of the ranks of which it came some time after their line before it.
        is_folded: `text` stands for lines that differ.
        is_marked: it must not be overlooked: `text` names ranks whose numbers are not like those of the others.
    """

    stream: Stream
    text: str
    live: bool = False
    number: int = -1
    came_s: float = 0.0
    late: int = 0
    texts: list[tuple[int, str]] = field(default_factory=list)
    numbers: list[tuple[int, int]] = field(default_factory=list)
    is_folded: bool = False
    is_marked: bool = False
    _shown: list[TextRow] | None = field(default=None, init=False)
    _shown_ranks: int = field(default=0, init=False)
    _settled: list[TextRow] | None = field(default=None, init=False)
    _settled_ranks: int = field(default=0, init=False)

    def put(self, ranks: int, text: str, number: int) -> None:
        """Say what some of its ranks wrote, a bit set, and in which of their lines."""
        put_all((self,), ranks, (text,), 0, number)

    def text_of(self, rank: int) -> str:
        """Return what a rank of it wrote."""
        text = next((text for ranks, text in reversed(self.texts) if ranks >> rank & 1), self.text)
        return text.of(rank) if isinstance(text, LineOfMany) else text

    def number_of(self, rank: int) -> int:
        """Return the number of the line of a rank."""
        return next((number for ranks, number in reversed(self.numbers) if ranks >> rank & 1), self.number)

    def ranks_by_number(self) -> dict[int, int]:
        """Return the numbers that the line has on its ranks, each with the ranks on which it has that."""
        found: dict[int, int] = {}
        left = self.ranks
        for ranks, number in (*reversed(self.numbers), (self.ranks, self.number)):
            if ranks & left:
                found[number] = found.get(number, 0) | ranks & left
                left &= ~ranks
        return found

    def shown(self) -> list[TextRow]:
        """Return the rows to show for it: one, and more for ranks that came after it was settled."""
        if self._settled is not None:
            parts = [part.part(part.ranks & self.ranks) for part in self._settled]
            late = self.ranks & ~self._settled_ranks
            if late:
                parts += replace(self, ranks=late).shown()
            return [part for part in parts if part.ranks]
        if not self.texts:
            return [self]
        if self._shown is None or self._shown_ranks != self.ranks:
            self._shown, self._shown_ranks = [self._of_many(spread(self._lines()))], self.ranks
        return self._shown

    def _lines(self) -> Iterator[tuple[int, str]]:
        left = self.ranks
        for ranks, text in reversed(self.texts):
            if ranks & left:
                yield ranks & left, text
                left &= ~ranks
        if left:
            yield left, self.text

    def _of_many(self, folded: Folded) -> TextRow:
        return replace(
            self,
            ranks=folded.ranks,
            key=None,
            text=folded.marked,
            texts=[],
            is_folded=folded.is_many,
            is_marked=bool(folded.apart),
        )

    @property
    def must_stay(self) -> bool:
        """Whether some of its ranks have nan or inf where others have numbers."""
        texts = [self.text, *(text for _, text in self.texts)]
        if len(texts) > 1 and not any(map(_has_unbounded, texts)):
            return False
        return any(row.is_marked for row in self.shown())

    def settle(self) -> int:
        """Keep what it shows and no longer what each rank wrote; return how many lines were let go."""
        count = len(self.texts)
        if count:
            self._settled, self._settled_ranks = self.shown(), self.ranks
            self.texts = []
        return count

    @property
    def is_alike(self) -> bool:
        """Whether all of its ranks wrote the same."""
        return not self.texts and self._settled is None

    @property
    def is_settled(self) -> bool:
        """Whether it is no longer known what each rank wrote."""
        return self._settled is not None


def put_all(rows: Iterable[TextRow], ranks: int, lines: Sequence[str], at: int, first: int) -> None:
    """Say what some ranks of rows wrote: lines from `at` on, one in each row. `first` is the number of line 0."""
    for place, row in enumerate(rows, at):
        text = lines[place]
        row._shown = None
        if row.texts or text != row.text or isinstance(text, LineOfMany):
            row.texts.append((ranks, text))
        if row.numbers or first + place != row.number:
            row.numbers.append((ranks, first + place))


@dataclass(slots=True, eq=False)
class DisplayRow(Row):
    """A figure, HTML or other rich output."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    size_bytes: int


@dataclass(slots=True, eq=False)
class NoteRow(Row):
    """What monarch_nb has to say between what ranks printed."""

    text: str


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

    def part(self, ranks: int) -> Self:
        chosen = members(ranks)
        lines = Counter({rank: self.lines[rank] for rank in chosen if rank in self.lines})
        displays = Counter({rank: self.displays[rank] for rank in chosen if rank in self.displays})
        return replace(self, ranks=ranks, lines=lines, displays=displays)


def gap_of(position: Position, lines: Mapping[int, int], displays: Mapping[int, int]) -> ElidedRow:
    """Return the row for what was dropped, counted by rank set."""
    gap = ElidedRow(0, position, -1, None)
    for counts, by_rank in ((lines, gap.lines), (displays, gap.displays)):
        for ranks, count in counts.items():
            by_rank.update(dict.fromkeys(members(ranks), count))
    gap.ranks = bits((*gap.lines, *gap.displays))
    return gap


@dataclass(slots=True)
class ResultGroup:
    """Ranks whose last expression looks the same.

    Attributes:
        bundle: what it looks like.
        facts: of each rank's value, where it is a number, or a tensor, of one of many ranks.
        metadata: the bundle's.
    """

    ranks: int
    bundle: Mapping[str, Any]
    facts: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _has_unbounded(line: str) -> bool:
    numbers = line.columns if isinstance(line, LineOfMany) else line
    return ("n" in numbers or "N" in numbers) and _UNBOUNDED.search(numbers) is not None  # both have an n


@lru_cache(4096)
def members(ranks: int) -> tuple[int, ...]:
    """Return the ranks of a bit set, e.g. (0, 2) for 0b101."""
    return tuple(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def bits(ranks: Iterable[int]) -> int:
    """Return the bit set of `ranks`."""
    return _bits(tuple(ranks))


@lru_cache(256)
def _bits(ranks: tuple[int, ...]) -> int:
    return sum(1 << rank for rank in set(ranks))


def order(row: Row) -> tuple[Position, int, int]:
    """Sort rows by this to show them."""
    return row.position, row.ranks & -row.ranks, row.sequence


def newest_of_each(rows: Sequence[Row], ranks: int, count: int) -> Iterator[Row]:
    """Yield so many of the newest rows of every rank."""
    wanted = dict.fromkeys(members(ranks), count)
    hungry = ranks
    for row in reversed(rows):
        if fed := row.ranks & hungry:
            yield row
            for rank in members(fed):
                wanted[rank] -= 1
                if not wanted[rank]:
                    hungry &= ~(1 << rank)
        elif not hungry:
            return


def displays_beyond(shown: list[DisplayRow]) -> list[DisplayRow]:
    """Return the displays that are too many or too large: the first few and the newest stay longest."""
    excess = len(shown) - HEAD_DISPLAYS - TAIL_DISPLAYS
    excess_bytes = sum(row.size_bytes for row in shown) - MAX_DISPLAY_BYTES
    if excess <= 0 and excess_bytes <= 0:
        return []
    *others, newest = sorted(shown, key=order)
    beyond = []
    for row in (*others[HEAD_DISPLAYS:], *others[:HEAD_DISPLAYS], newest):
        if excess <= 0 and excess_bytes <= 0:
            break
        excess, excess_bytes = excess - 1, excess_bytes - row.size_bytes
        beyond.append(row)
    return beyond


def size_of(bundle: Mapping[str, Any]) -> int:
    """Return about how many bytes the contents of a MIME bundle take, be they text or JSON."""
    return sum(len(content if isinstance(content, str) else str(content)) for content in bundle.values())


def position_of(row: Row) -> Position:
    """Search sorted rows by this."""
    return row.position


def shown_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what is shown of rows."""
    for row in rows:
        if isinstance(row, TextRow):
            yield from row.shown()
        else:
            yield row
