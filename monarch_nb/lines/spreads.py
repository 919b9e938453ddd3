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
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.templates import Kind, Shape, Token, shape_of

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


class _Line(NamedTuple):
    """A line, and the ranks that have it."""

    ranks: int
    text: str
    shape: Shape
    parts: tuple[str, ...]


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
    parsed = [_parsed(text, ranks) for text, ranks in ranks_of.items()]
    parsed.sort(key=lambda line: line.ranks & -line.ranks)
    main, *others = _by_unbounded(parsed)
    main, outside = _without_outside(main)
    apart = [_joined(group) for group in others] + [Folded(line.ranks, line.text) for line in outside]
    apart.sort(key=lambda folded: folded.ranks & -folded.ranks)
    return [_joined(main), *(folded._replace(is_apart=True) for folded in apart)]


def _parsed(text: str, ranks: int) -> _Line:
    shape = shape_of(text)
    return _Line(ranks, text, shape, shape.parts(text))


# ---- who is apart ----


def _by_unbounded(lines: Sequence[_Line]) -> list[list[_Line]]:
    """Return lines grouped by where they have nan or inf, those of most ranks first."""
    groups: dict[tuple[int, ...], list[_Line]] = defaultdict(list)
    for line in lines:
        groups[line.shape.unbounded].append(line)
    return sorted(groups.values(), key=lambda group: -sum(line.ranks.bit_count() for line in group))


def _without_outside(lines: list[_Line]) -> tuple[list[_Line], list[_Line]]:
    """Return the lines of most ranks, and of those whose numbers are far outside."""
    count = sum(line.ranks.bit_count() for line in lines)
    if count <= LEAST_OTHERS:
        return lines, []
    most = min(count // MOST_APART or 1, count - LEAST_OTHERS)
    outside: set[int] = set()
    for token, parts in zip(lines[0].shape.tokens, zip(*(line.parts for line in lines), strict=True), strict=True):
        if (
            (token.kind in (Kind.NUMBER, Kind.DURATION) or (token.kind is Kind.MOMENT and ":" in parts[0]))
            and len(distinct := frozenset(parts)) > 1
            and not _is_word(parts[0])
            and not _is_of_ranks(lines, token, parts)
            and _may_be_far(_numbers(distinct), most)
        ):
            outside |= _outside(lines, parts, most, FAR_CLOCK_S if token.kind is Kind.MOMENT else 0.0)
    return (
        [line for index, line in enumerate(lines) if index not in outside],
        [line for index, line in enumerate(lines) if index in outside],
    )


def _may_be_far(values: list[float], most: int) -> bool:
    """Whether at most so many of these may be far from the others: false of nearly all lines, and soon known."""
    ends = min(LEAST_OTHERS, most)
    if len(values) <= 2 * ends:
        return True
    values.sort()
    least, greatest = values[ends], values[-1 - ends]
    return max(least - values[0], values[-1] - greatest) > FAR * (greatest - least)


def _outside(lines: Sequence[_Line], parts: Sequence[str], most: int, least_far: float) -> set[int]:
    """Return which lines have a number there that is far from all others', and at least `least_far`."""
    ordered = sorted(zip(_numbers(parts), itertools.count(), strict=False))
    values = [value for value, _ in ordered]
    sizes = [lines[index].ranks.bit_count() for _, index in ordered]
    below, above = _ends(sizes, most), _ends(sizes[::-1], most)
    best: set[int] = set()
    for low in range(below + 1):
        for high in range(above + 1):
            kept = slice(low, len(values) - high)
            removed = sum(sizes[:low]) + sum(sizes[len(sizes) - high :] if high else ())
            if (
                removed <= most
                and _is_far(values, kept, least_far)
                and removed > sum(lines[index].ranks.bit_count() for index in best)
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


def _joined(lines: Sequence[_Line]) -> Folded:
    """Return lines as one."""
    first = lines[0]
    if len(lines) == 1:
        return Folded(first.ranks, first.text)
    ranks = 0
    for line in lines:
        ranks |= line.ranks
    pieces: list[str] = []
    at = 0
    for token, parts in zip(first.shape.tokens, zip(*(line.parts for line in lines), strict=True), strict=True):
        pieces += (first.text[at : token.start], _together(lines, token, parts))
        at = token.end
    return Folded(ranks, "".join((*pieces, first.text[at:])), is_many=True)


def _together(lines: Sequence[_Line], token: Token, parts: Sequence[str]) -> str:
    """Return what stands for a token of all lines."""
    kind, first = token.kind, parts[0]
    distinct = dict.fromkeys(parts)
    if len(distinct) == 1:
        return first
    if kind is Kind.HEX:
        return "0x…"
    if kind is Kind.PID:
        return "…"
    if kind is Kind.BAR or (kind is Kind.MOMENT and not _is_wide(distinct)):
        return f"{_DIM}{first}{_NOT_DIM}"
    if _is_of_ranks(lines, token, parts):
        return format_ranks(map(int, distinct))
    if all(map(_is_word, distinct)):
        return "/".join(distinct)
    values = _numbers(distinct)
    least, greatest = min(values), max(values)
    if least == greatest:
        return first
    if kind is Kind.DURATION and greatest - least <= _NEAR_SHARE * abs(greatest):
        return f"{_DIM}{first}{_NOT_DIM}"
    texts = list(distinct)
    return f"{texts[values.index(least)]}{_RANGE}{texts[values.index(greatest)]}"


def _is_wide(moments: Iterable[str]) -> bool:
    """Whether times of day are so far apart that they are none."""
    if not all(":" in moment for moment in moments):
        return False
    values = _numbers(moments)
    return max(values) - min(values) > FAR_CLOCK_S


def _is_of_ranks(lines: Sequence[_Line], token: Token, parts: Sequence[str]) -> bool:
    """Whether the numbers are the ranks themselves, or are said to be those of ranks, nodes or devices."""
    if not parts[0].isdecimal() or not all(part.isdecimal() and len(part) < 7 for part in parts):
        return False
    if _OF_RANKS.search(lines[0].text, max(0, token.start - 16), token.start):
        return True
    return all(line.ranks == 1 << int(part) for line, part in zip(lines, parts, strict=True))


def _is_word(part: str) -> bool:
    return part[-1].isalpha()


def _numbers(parts: Iterable[str]) -> list[float]:
    return [_seconds(part) if ":" in part else float(part.replace(",", "")) for part in parts]


def _seconds(clock: str) -> float:
    """Return how long 1:02:03.5 is; what stands behind a + or - is a time zone."""
    seconds = 0.0
    for part in re.split("[+-]", clock)[0].replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds
