"""Alike lines of several ranks become one: equal numbers stand as they are, different ones as a range.

A number does not hide in a range when it is nan or inf where others have numbers, or when it is far from all others
(`outliers`, and more than 2 % of their median): it stands behind the line, with its name and its ranks. At most one
rank in eight is far: more of them are no exception, and stay in the range.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from monarch_nb.ground import escapes
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines import named
from monarch_nb.lines.outliers import LEAST_OTHERS, may_be_outside, outside
from monarch_nb.lines.templates import Kind, Shape, Token, shape_of

FAR_SHARE = 0.02
"""Of the median of the others: what is far is further away than that."""
MOST_APART = 8
"""At most one rank in so many is far from the others."""
FAR_CLOCK_S = 60.0
"""Times of day that are further apart are shown as a range: clocks differ less, so it is no time of day."""
_NEAR_SHARE = 0.1
"""Durations that differ by less are the same for who reads them."""
_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"
_FAR, _UNBOUNDED, _PLAIN = "\x1b[1;93m", "\x1b[1;31m", "\x1b[0m"
_RANGE = "–"
_MAX_RANKS_CHARACTERS = 60
_WORDS_BEFORE = 2
"""Of what has no name, so many words are told that stand before it."""
_OF_RANKS = re.compile(r"(?:\b(?:rank|local_rank|node|host|gpu|device)s?[\s:=#]*|\bcuda:)$", re.IGNORECASE)


class Apart(NamedTuple):
    """What of a line must not be overlooked, because other ranks have other numbers there.

    Attributes:
        ranks: bit set of them.
        text: the numbers, with their names: "loss: nan".
        is_unbounded: some are nan or inf, or those of the others are.
    """

    ranks: int
    text: str
    is_unbounded: bool = False


class Folded(NamedTuple):
    """A line of several ranks.

    Attributes:
        ranks: bit set of them.
        text: with ranges where they differ; the line itself where they do not.
        is_many: they differ.
        apart: what is not in the ranges.
    """

    ranks: int
    text: str
    is_many: bool = False
    apart: tuple[Apart, ...] = ()

    @property
    def marked(self) -> str:
        """The text, and behind it who has other numbers: "loss: 2.3–2.4  [77]! loss: nan"."""
        marks = (
            f"  {_UNBOUNDED if each.is_unbounded else _FAR}[{_format(each.ranks)}]! {each.text}{_PLAIN}"
            for each in self.apart
        )
        return "".join((self.text, *marks))


class _Line(NamedTuple):
    """A line, and the ranks that have it."""

    ranks: int
    text: str
    shape: Shape
    parts: tuple[str, ...]


def spread(lines: Iterable[tuple[int, str]]) -> Folded:
    """Return lines that have the same template as one.

    Args:
        lines: bit sets of ranks, each with its line; no rank is in two of them.

    Example:
        >>> spread([(0b01, "step 5: loss 2.31"), (0b10, "step 5: loss 2.35")])
        Folded(ranks=3, text='step 5: loss 2.31–2.35', is_many=True, apart=())
    """
    ranks_of: dict[str, int] = defaultdict(int)
    for ranks, text in lines:
        ranks_of[text] |= ranks
    if len(ranks_of) == 1:
        return next(Folded(ranks, text) for text, ranks in ranks_of.items())
    parsed = [_parsed(text, ranks) for text, ranks in ranks_of.items()]
    parsed.sort(key=lambda line: line.ranks & -line.ranks)
    return _joined(parsed)


def _parsed(text: str, ranks: int) -> _Line:
    shape = shape_of(text)
    return _Line(ranks, text, shape, shape.parts(text))


# ---- who is apart ----


def _odd(lines: Sequence[_Line], place: int, parts: Sequence[str], kind: Kind, before: str) -> set[int]:
    """Return which lines have something else there: nan or inf where most ranks have numbers, or the other way round,
    or a number that is far from all others."""
    odd: set[int] = set()
    if kind is Kind.NUMBER and any(line.shape.unbounded for line in lines):
        unbounded = {index for index, line in enumerate(lines) if place in line.shape.unbounded}
        usual = 2 * _count(lines[index] for index in unbounded) > _count(lines)
        odd = set(range(len(lines))) - unbounded if usual else unbounded
        if usual:
            return odd
    is_clock = kind is Kind.MOMENT and ":" in parts[0]
    if (kind in (Kind.NUMBER, Kind.DURATION) or is_clock) and not _are_of_ranks(before, parts):
        left = [index for index in range(len(lines)) if index not in odd]
        far = _far([lines[each] for each in left], [parts[each] for each in left], is_clock)
        odd |= {left[index] for index in far}
    return odd


def _far(lines: Sequence[_Line], parts: Sequence[str], is_clock: bool) -> list[int]:
    """Return which lines have a number there that is far from all others'."""
    count = _count(lines)
    most = count // MOST_APART or 1
    if (
        count <= LEAST_OTHERS
        or not may_be_outside(sorted(_numbers(frozenset(parts))), most)
        or _are_ranks(lines, parts)
    ):
        return []
    return outside(
        _numbers(parts),
        most,
        [line.ranks.bit_count() for line in lines],
        share=0.0 if is_clock else FAR_SHARE,  # of a time of day no share means anything
        rounding=0.0 if is_clock else 10.0 ** -min(map(_decimals, parts)),
        least=FAR_CLOCK_S if is_clock else 0.0,
    )


def _decimals(part: str) -> float:
    """Return how many digits a number has behind the point, without end for a whole number, which is exact."""
    digits, _, exponent = part.lower().partition("e")
    behind = digits.partition(".")[2]
    return len(behind) - int(exponent or 0) if behind else math.inf


def _count(lines: Iterable[_Line]) -> int:
    return sum(line.ranks.bit_count() for line in lines)


def _apart(lines: Sequence[_Line], odd: Mapping[int, Sequence[int]], alike: Mapping[int, str]) -> Iterator[Apart]:
    """Yield what is said of lines whose tokens at these places are odd, in the order of their first ranks.

    Args:
        alike: by place, what the first of the others has there.
    """
    groups: dict[tuple[object, ...], list[_Line]] = defaultdict(list)
    for index, places in sorted(odd.items()):
        line = lines[index]
        sides = (_is_word(part := line.parts[place]) or _is_below(part, alike[place]) for place in places)
        groups[(*places, line.shape.unbounded, *sides)].append(line)
    for group in groups.values():
        first = group[0]
        places = odd[lines.index(first)]
        told = (_named(group, first.shape.tokens[place], [line.parts[place] for line in group]) for place in places)
        is_unbounded = any(_is_word(first.parts[place]) or _is_word(alike[place]) for place in places)
        yield Apart(_ranks(group), ", ".join(told), is_unbounded)


def _is_below(part: str, other: str) -> bool | None:
    if _is_word(other):
        return None
    value, usual = _numbers((part, other))
    return value < usual


def _named(lines: Sequence[_Line], token: Token, parts: Sequence[str]) -> str:
    """Return what the lines have at a token, with its name and its unit."""
    text = escapes.ESCAPE.sub(lambda code: " " * len(code[0]), lines[0].text)
    value = _together(token.kind, _before(lines[0], token), parts)
    field = next((each for each in named.read(text).fields if token.start <= each.start < token.end), None)
    if field is None:
        return f"{' '.join(text[: token.start].split()[-_WORDS_BEFORE:])} {value}".strip()
    between = " " if text[field.end : field.end + 1] == " " and field.unit else ""
    return f"{field.name.removesuffix(f' ({field.unit})')}: {value}{between}{field.unit}"


def _ranks(lines: Iterable[_Line]) -> int:
    return functools.reduce(operator.or_, (line.ranks for line in lines))


# ---- what they have together ----


def _joined(lines: Sequence[_Line]) -> Folded:
    """Return lines as one."""
    first = lines[0]
    pieces: list[str] = []
    at = 0
    odd: dict[int, list[int]] = defaultdict(list)
    alike: dict[int, str] = {}
    tokens = zip(first.shape.tokens, zip(*(line.parts for line in lines), strict=True), strict=True)
    for place, (token, parts) in enumerate(tokens):
        pieces += (first.text[at : token.start], parts[0])
        at = token.end
        if parts.count(parts[0]) == len(parts):
            continue
        before = _before(first, token)
        if some := _odd(lines, place, parts, token.kind, before):
            parts = tuple(part for index, part in enumerate(parts) if index not in some)
            alike[place] = parts[0]
            for index in some:
                odd[index].append(place)
        pieces[-1] = _together(token.kind, before, parts)
    text = "".join((*pieces, first.text[at:]))
    return Folded(_ranks(lines), text, is_many=True, apart=tuple(_apart(lines, odd, alike)))


def _before(line: _Line, token: Token) -> str:
    """Return what stands before a token: as much as says whether it is a rank."""
    return line.text[max(0, token.start - 16) : token.start]


def _together(kind: Kind, before: str, parts: Sequence[str]) -> str:
    """Return what stands for a token of several lines."""
    first = parts[0]
    distinct = dict.fromkeys(parts)
    if len(distinct) == 1:
        return first
    if kind is Kind.HEX:
        return "0x…"
    if kind is Kind.PID:
        return "…"
    if kind is Kind.BAR or (kind is Kind.MOMENT and not _is_wide(distinct)):
        return f"{_DIM}{first}{_NOT_DIM}"
    if _are_of_ranks(before, distinct):
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


def _are_of_ranks(before: str, parts: Iterable[str]) -> bool:
    """Whether the line says that the numbers are those of ranks, nodes or devices."""
    return all(map(_is_small, parts)) and _OF_RANKS.search(before) is not None


def _are_ranks(lines: Sequence[_Line], parts: Sequence[str]) -> bool:
    """Whether the numbers are the ranks that wrote them."""
    return all(_is_small(part) and line.ranks == 1 << int(part) for line, part in zip(lines, parts, strict=True))


def _is_small(part: str) -> bool:
    return part.isdecimal() and len(part) < 7


def _format(ranks: int) -> str:
    text = format_ranks(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)
    if len(text) <= _MAX_RANKS_CHARACTERS:
        return text
    return f"{text[:_MAX_RANKS_CHARACTERS].rpartition(',')[0]},… {ranks.bit_count()} ranks"


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
