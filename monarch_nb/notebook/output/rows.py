"""Rows: what is shown once for a set of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

from monarch_nb.client.connections.events import Stream

Position = tuple[int, int]
"""Number of the line, and number of the line put in behind it."""


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


@dataclass(slots=True)
class ResultGroup:
    """Ranks whose last expression looks the same.

    Attributes:
        bundle: what it looks like.
        facts: of each rank's value, where it is a number, or a tensor, of one of many ranks.
    """

    ranks: int
    bundle: Mapping[str, Any]
    facts: dict[int, Mapping[str, Any]] = field(default_factory=dict)


@lru_cache(4096)
def members(ranks: int) -> tuple[int, ...]:
    """Return the ranks of a bit set, e.g. (0, 2) for 0b101."""
    return tuple(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def bits(ranks: Iterable[int]) -> int:
    """Return the bit set of `ranks`."""
    return sum(1 << rank for rank in set(ranks))


def order(row: Row) -> tuple[Position, int, int]:
    """Sort rows by this to show them."""
    return row.position, row.ranks & -row.ranks, row.sequence


def position_of(row: Row) -> Position:
    """Search sorted rows by this."""
    return row.position
