"""Alike lines of several ranks become one: equal numbers stand as they are, different ones as a range.

A rank does not hide in a range when it has nan or inf where others have numbers, or when its number is far outside. It
is far outside when there are at least 8 others, and it is further away from them than twice the distance between their
least and their greatest, and than 2 % of their median. At most one rank in eight is outside: more of them are no
exception, and stay in the range.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property, reduce
from operator import attrgetter, or_
from typing import NamedTuple

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.templates import Kind, Shape, Token, shapes_of

LEAST_OTHERS = 8
"""So many other ranks are needed to tell that one is far outside."""
FAR = 2.0
"""Times the distance between the least and the greatest of the others."""
FAR_SHARE = 0.02
"""Of the median of the others: the distance is at least so much."""
MOST_APART = 8
"""At most one rank in so many is apart."""
FAR_CLOCK_S = 60.0
"""Times of day that are further apart are shown as a range: clocks differ less, so it is no time of day."""
_NEAR_SHARE = 0.1
"""Durations that differ by less are the same for who reads them."""
_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"
_RANGE = "–"
_OF_RANKS = re.compile(r"(?:\b(?:rank|local_rank|node|host|gpu|device)s?[\s:=#]*|\bcuda:)$", re.IGNORECASE)


class Folded(NamedTuple):
    """A line of several ranks.

    Attributes:
        ranks: bit set of them.
        text: with ranges where they differ; the line itself where they do not.
        is_many: they differ.
        is_apart: it must not be overlooked: others have other values.
    """

    ranks: int
    text: str
    is_many: bool = False
    is_apart: bool = False


class _Column:
    """What lines have in place of one token.

    Attributes:
        parts: of each line.
        is_one: they all are equal.
    """

    __slots__ = ("_ordered", "_values", "is_one", "parts", "token")

    def __init__(self, token: Token, parts: tuple[str, ...]) -> None:
        self.token, self.parts = token, parts
        self.is_one = parts.count(parts[0]) == len(parts)
        self._values: list[float] | None = None
        self._ordered: list[float] | None = None

    @property
    def values(self) -> list[float]:
        """The number of each line."""
        if self._values is None:
            self._values = _numbers(self.parts)
        return self._values

    @property
    def ordered(self) -> list[float]:
        """The numbers from the least to the greatest."""
        if self._ordered is None:
            self._ordered = sorted(self.values)
        return self._ordered


class _Lines:
    """Lines with one template, in the order of their first ranks: what is said of each stands in a column.

    Attributes:
        ranks: the bit set of each.
        texts: of each.
    """

    def __init__(self, ranks: Sequence[int], texts: Sequence[str], shapes: Sequence[Shape]) -> None:
        self.ranks, self.texts, self._shapes = ranks, texts, shapes

    @property
    def count(self) -> int:
        """Of their ranks."""
        return sum(map(int.bit_count, self.ranks))

    @cached_property
    def columns(self) -> list[_Column]:
        """Of each token."""
        parts = [shape.parts(text) for shape, text in zip(self._shapes, self.texts, strict=True)]
        return [*map(_Column, self._shapes[0].tokens, zip(*parts, strict=True))]

    def by_unbounded(self) -> list[_Lines]:
        """Return lines grouped by where they have nan or inf, those of most ranks first."""
        if len(set(map(attrgetter("unbounded"), self._shapes))) == 1:
            return [self]
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, shape in enumerate(self._shapes):
            groups[shape.unbounded].append(place)
        return sorted(map(self.some, groups.values()), key=lambda group: -group.count)

    def some(self, places: Collection[int]) -> _Lines:
        """Return the lines at some places."""
        every = (self.ranks, self.texts, self._shapes)
        ranks, texts, shapes = ([of_all[place] for place in places] for of_all in every)
        return _Lines(ranks, texts, shapes)  # type: ignore[arg-type]


def spread(lines: Iterable[tuple[int, str]]) -> list[Folded]:
    """Return lines that have the same template as one, and behind it those of ranks that are apart.

    Args:
        lines: bit sets of ranks, each with its line; no rank is in two of them.

    Example:
        >>> spread([(0b01, "step 5: loss 2.31"), (0b10, "step 5: loss 2.35")])
        [Folded(ranks=3, text='step 5: loss 2.31–2.35', is_many=True, is_apart=False)]
    """
    ranks_of: dict[str, int] = defaultdict(int)
    for ranks, text in lines:
        ranks_of[text] |= ranks
    if len(ranks_of) == 1:
        return [Folded(ranks, text) for text, ranks in ranks_of.items()]
    ordered = sorted(ranks_of.items(), key=_first_rank)
    texts = [text for text, _ in ordered]
    main, *others = _Lines([ranks for _, ranks in ordered], texts, shapes_of(texts)).by_unbounded()
    outside = _outside(main)
    apart = [Folded(main.ranks[place], main.texts[place]) for place in outside]
    apart += map(_joined, others)
    apart.sort(key=lambda folded: folded.ranks & -folded.ranks)
    if outside:
        main = main.some([place for place in range(len(main.texts)) if place not in outside])
    return [_joined(main), *(folded._replace(is_apart=True) for folded in apart)]


def _first_rank(line: tuple[str, int]) -> int:
    return line[1] & -line[1]


# ---- who is apart ----


def _outside(lines: _Lines) -> set[int]:
    """Return the places of the lines whose numbers are far outside those of most ranks."""
    count = lines.count
    if count <= LEAST_OTHERS:
        return set()
    most = min(count // MOST_APART or 1, count - LEAST_OTHERS)
    outside: set[int] = set()
    for column in lines.columns:
        if not column.is_one and _may_be_outside(lines, column, most):
            least_far = FAR_CLOCK_S if column.token.kind is Kind.MOMENT else 0.0
            outside |= _outside_of(lines.ranks, column.values, most, least_far)
    return outside


def _may_be_outside(lines: _Lines, column: _Column, most: int) -> bool:
    """Whether at most so many may be outside there: false of nearly all lines, and soon known."""
    if column.token.kind is Kind.MOMENT:
        return _is_wide(column) and _may_be_far(column.ordered, most)
    if column.token.kind not in (Kind.NUMBER, Kind.DURATION) or _is_word(column.parts[0]):
        return False
    return not _is_of_ranks(lines, column) and _may_be_far(column.ordered, most)


def _may_be_far(values: Sequence[float], most: int) -> bool:
    """Whether at most so many of these may be far from the others."""
    ends = min(LEAST_OTHERS, most)
    if len(values) <= 2 * ends:
        return True
    least, greatest = values[ends], values[-1 - ends]
    return max(least - values[0], values[-1] - greatest) > FAR * (greatest - least)


def _outside_of(ranks: Sequence[int], values: Sequence[float], most: int, least_far: float) -> set[int]:
    """Return which lines have a number there that is far from all others', and at least `least_far`."""
    ordered = sorted(zip(values, itertools.count(), strict=False))
    values = [value for value, _ in ordered]
    sizes = [ranks[index].bit_count() for _, index in ordered]
    below, above = _ends(sizes, most), _ends(sizes[::-1], most)
    best: set[int] = set()
    for low in range(below + 1):
        for high in range(above + 1):
            kept = slice(low, len(values) - high)
            removed = sum(sizes[:low]) + sum(sizes[len(sizes) - high :] if high else ())
            if (
                removed <= most
                and _is_far(values, kept, least_far)
                and removed > sum(ranks[index].bit_count() for index in best)
            ):
                best = {index for _, index in (*ordered[:low], *ordered[len(ordered) - high :][:high])}
    return best


def _ends(sizes: Sequence[int], most: int) -> int:
    """Return how many of the first have `most` ranks together, at most."""
    total = ends = 0
    for size in sizes[:-1]:
        total += size
        if total > most or ends == LEAST_OTHERS:
            break
        ends += 1
    return ends


def _is_far(values: Sequence[float], kept: slice, least_far: float) -> bool:
    """Whether those that are not kept are far from all that are."""
    others = values[kept]
    if not others or len(others) == len(values):
        return False
    least, greatest = others[0], others[-1]
    share = 0.0 if least_far else FAR_SHARE  # of a time of day no share means anything
    far = max(FAR * (greatest - least), share * abs(others[len(others) // 2]), least_far)
    is_below = kept.start == 0 or least - values[kept.start - 1] > far
    is_above = kept.stop == len(values) or values[kept.stop] - greatest > far
    return bool(is_below and is_above)


# ---- what they have together ----


def _joined(lines: _Lines) -> Folded:
    """Return lines as one."""
    text = lines.texts[0]
    if len(lines.texts) == 1:
        return Folded(lines.ranks[0], text)
    pieces: list[str] = []
    at = 0
    for column in lines.columns:
        pieces += (text[at : column.token.start], _together(lines, column))
        at = column.token.end
    return Folded(reduce(or_, lines.ranks), "".join((*pieces, text[at:])), is_many=True)


def _together(lines: _Lines, column: _Column) -> str:
    """Return what stands for a token of all lines."""
    kind, first = column.token.kind, column.parts[0]
    if column.is_one:
        return first
    if kind is Kind.HEX:
        return "0x…"
    if kind is Kind.PID:
        return "…"
    if kind is Kind.BAR or (kind is Kind.MOMENT and not _is_wide(column)):
        return f"{_DIM}{first}{_NOT_DIM}"
    if _is_of_ranks(lines, column):
        return format_ranks(map(int, set(column.parts)))
    if all(map(_is_word, column.parts)):
        return "/".join(dict.fromkeys(column.parts))
    least, greatest = column.ordered[0], column.ordered[-1]
    if least == greatest:
        return first
    if kind is Kind.DURATION and greatest - least <= _NEAR_SHARE * abs(greatest):
        return f"{_DIM}{first}{_NOT_DIM}"
    return _RANGE.join(column.parts[column.values.index(value)] for value in (least, greatest))


def _is_wide(column: _Column) -> bool:
    """Whether times of day are so far apart that they are none."""
    seconds = {moment[:8] for moment in column.parts}
    if not all(":" in second for second in seconds):
        return False  # some are dates
    whole = _numbers(seconds)
    if max(whole) - min(whole) < FAR_CLOCK_S - 1:
        return False  # whatever their fractions are
    return column.ordered[-1] - column.ordered[0] > FAR_CLOCK_S


def _is_of_ranks(lines: _Lines, column: _Column) -> bool:
    """Whether the numbers are the ranks themselves, or are said to be those of ranks, nodes or devices."""
    parts, start = column.parts, column.token.start
    if not parts[0].isdecimal() or not "".join(parts).isdecimal() or max(map(len, parts)) >= 7:
        return False
    if _OF_RANKS.search(lines.texts[0], max(0, start - 16), start):
        return True
    return all(ranks == 1 << int(part) for ranks, part in zip(lines.ranks, parts, strict=True))


def _is_word(part: str) -> bool:
    return part[-1].isalpha()


def _numbers(parts: Collection[str]) -> list[float]:
    try:
        return [*map(float, parts)]
    except ValueError:
        return [_seconds(part) if ":" in part else float(part.replace(",", "")) for part in parts]


def _seconds(clock: str) -> float:
    """Return how long 1:02:03.5 is; what stands behind a + or - is a time zone."""
    seconds = 0.0
    for part in clock.partition("+")[0].partition("-")[0].replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds
