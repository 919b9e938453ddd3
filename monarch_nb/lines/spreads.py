"""Alike lines of several ranks become one: equal numbers stand as they are, different ones as a range.

A number does not hide in a range when it is nan or inf where others have numbers, or when it is far from all others
(`outliers`, and more than 2 % of their median): it stands behind the line, with its name and its ranks. At most one
rank in eight is far: more of them are no exception, and stay in the range.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import NamedTuple

from monarch_nb.ground import escapes
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines import named, packing
from monarch_nb.lines.outliers import LEAST_OTHERS, may_be_outside, outside
from monarch_nb.lines.packing import LineOfMany
from monarch_nb.lines.templates import Kind, Token, key_of, shape_of, shapes_of

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


class _Column:
    """What lines have in place of one token.

    Attributes:
        parts: of each line; one for all where all are equal.
        is_one: they all are equal.
    """

    __slots__ = ("_ends", "_text", "_values", "is_one", "kind", "parts")

    def __init__(self, kind: Kind, parts: Sequence[str], text: str = "") -> None:
        """Args: text: the parts, with something between them, if somebody has it already."""
        self.kind, self.parts, self._text = kind, parts, text
        self.is_one = parts.count(parts[0]) == len(parts)
        self._ends: tuple[float, float] | None = None
        self._values: list[float] | None = None

    @property
    def values(self) -> list[float]:
        """The number of each line."""
        if self._values is None:
            self._values = _numbers(self.parts)
        return self._values

    @property
    def has_words(self) -> bool:
        """Whether some lines have nan or inf there, where others may have numbers."""
        if self.kind is not Kind.NUMBER or self.is_one:
            return False
        text = self._text or "".join(self.parts)
        return "n" in text or "N" in text

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest number."""
        if self._ends is None:
            self._ends = min(self.values), max(self.values)
        return self._ends

    def without(self, places: Collection[int]) -> _Column:
        """Return the column of the other lines than those."""
        if not places:
            return self
        return _Column(self.kind, tuple(part for place, part in enumerate(self.parts) if place not in places))


class _Lines:
    """Lines with one template, in the order of their first ranks: what is said of each stands in a column.

    Attributes:
        ranks: the bit set of each.
        columns: of each token.
    """

    def __init__(self, ranks: Sequence[int], columns: Sequence[_Column], text_of: Callable[[int], str]) -> None:
        """Args: text_of: returns a line."""
        self.ranks, self.columns, self.text = ranks, columns, text_of

    @classmethod
    def of_texts(cls, ranks: Sequence[int], texts: Sequence[str]) -> _Lines:
        """Take lines apart."""
        shapes = shapes_of(texts)
        parts = [shape.parts(text) for shape, text in zip(shapes, texts, strict=True)]
        kinds = [token.kind for token in shapes[0].tokens]
        return cls(ranks, [*map(_Column, kinds, zip(*parts, strict=True))], texts.__getitem__)

    @classmethod
    def of_many(cls, lines: Iterable[tuple[int, str]]) -> _Lines:
        """Take lines of which some are those of several ranks, with their columns."""
        pieces = [_piece(ranks, text) for ranks, text in lines]
        pieces.sort(key=lambda piece: piece.ranks[0])
        ranks = [*itertools.chain.from_iterable(piece.ranks for piece in pieces)]
        together = packing.joined([piece.columns for piece in pieces], [len(piece.ranks) for piece in pieces])
        parts = [*map(packing.parts_of, together)]
        if ranks != (ordered := sorted(ranks)):
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            parts = [[of[index] for index in order] if len(of) > 1 else of for of in parts]
            ranks = ordered

        def text_of(index: int) -> str:
            line = next(piece.line for piece in pieces if ranks[index] in piece.ranks)
            return line.of(ranks[index]) if isinstance(line, LineOfMany) else line

        first, left = text_of(0), zip(parts, together, strict=True)
        columns = [
            _Column(token.kind, [first[token.start : token.end]])
            if token.kind is Kind.LITERAL
            else _Column(token.kind, *next(left))
            for token in shape_of(first).tokens
        ]
        return cls(_bits_of(tuple(ranks)), columns, text_of)

    def token(self, line: int, place: int) -> Token:
        """Return where a line has a token."""
        return shape_of(self.text(line)).tokens[place]

    @cached_property
    def count(self) -> int:
        """How many ranks they are of."""
        return _count(self.ranks)

    @cached_property
    def word_places(self) -> list[int]:
        """Where some have nan or inf."""
        return [place for place, column in enumerate(self.columns) if column.has_words]

    def words(self, line: int) -> tuple[int, ...]:
        """Return where a line has nan or inf."""
        return tuple(place for place in self.word_places if _is_word(self.columns[place].parts[line]))


class _Piece(NamedTuple):
    """Ranks, what they have at each place where lines may differ, and their line."""

    ranks: Sequence[int]
    columns: packing.Columns
    line: str


def _piece(ranks: int, line: str) -> _Piece:
    if not isinstance(line, LineOfMany):
        return _Piece(_ranks_in(ranks), shape_of(line).free(line), line)
    columns = packing.split(line.columns)
    if ranks.bit_count() == len(line.ranks):
        return _Piece(line.ranks, columns, line)
    left = [index for index, rank in enumerate(line.ranks) if ranks >> rank & 1]
    return _Piece([line.ranks[index] for index in left], packing.chosen(columns, left), line)


@lru_cache(1024)
def _bits_of(ranks: tuple[int, ...]) -> list[int]:
    return [1 << rank for rank in ranks]


def spread(lines: Iterable[tuple[int, str]]) -> Folded:
    """Return lines that have the same template as one.

    Args:
        lines: bit sets of ranks, each with its line; no rank is in two of them.

    Example:
        >>> spread([(0b01, "step 5: loss 2.31"), (0b10, "step 5: loss 2.35")])
        Folded(ranks=3, text='step 5: loss 2.31–2.35', is_many=True, apart=())
    """
    lines = [*lines]
    if any(isinstance(text, LineOfMany) for _, text in lines):
        return _joined(_Lines.of_many(lines))
    ranks_of: dict[str, int] = defaultdict(int)
    for ranks, text in lines:
        ranks_of[text] |= ranks
    if len(ranks_of) == 1:
        return next(Folded(ranks, text) for text, ranks in ranks_of.items())
    ordered = sorted(ranks_of.items(), key=_first_rank)
    return _joined(_Lines.of_texts([ranks for _, ranks in ordered], [text for text, _ in ordered]))


def _first_rank(line: tuple[str, int]) -> int:
    return line[1] & -line[1]


# ---- who is apart ----


def _odd(lines: _Lines, place: int, before: str) -> set[int]:
    """Return which lines have something else there: nan or inf where most ranks have numbers, or the other way round,
    or a number that is far from all others."""
    column = lines.columns[place]
    odd: set[int] = set()
    if column.has_words:
        odd = {index for index, part in enumerate(column.parts) if _is_word(part)}
        if 2 * _count(lines.ranks[index] for index in odd) > lines.count:
            return set(range(len(lines.ranks))) - odd
    is_clock = column.kind is Kind.MOMENT and _is_wide(column)
    if (column.kind in (Kind.NUMBER, Kind.DURATION) or is_clock) and not _are_of_ranks(before, column.parts):
        if not odd:
            return set(_far(lines.ranks, lines.count, column, is_clock))
        left = [index for index in range(len(lines.ranks)) if index not in odd]
        ranks = [lines.ranks[index] for index in left]
        odd |= {left[index] for index in _far(ranks, _count(ranks), column.without(odd), is_clock)}
    return odd


def _far(ranks: Sequence[int], count: int, column: _Column, is_clock: bool) -> list[int]:
    """Return which lines have a number there that is far from all others'."""
    most = count // MOST_APART or 1
    if count <= LEAST_OTHERS or not may_be_outside(column.values, most, column.ends):
        return []
    if _are_ranks(ranks, column.parts):
        return []
    return outside(
        column.values,
        most,
        [*map(int.bit_count, ranks)],
        share=0.0 if is_clock else FAR_SHARE,  # of a time of day no share means anything
        rounding=0.0 if is_clock else 10.0 ** -min(map(_decimals, column.parts)),
        least=FAR_CLOCK_S if is_clock else 0.0,
    )


def _decimals(part: str) -> float:
    """Return how many digits a number has behind the point, without end for a whole number, which is exact."""
    digits, _, exponent = part.lower().partition("e")
    behind = digits.partition(".")[2]
    return len(behind) - int(exponent or 0) if behind else math.inf


def _count(ranks: Iterable[int]) -> int:
    return sum(map(int.bit_count, ranks))


def _apart(lines: _Lines, odd: Mapping[int, Sequence[int]], alike: Mapping[int, str]) -> Iterator[Apart]:
    """Yield what is said of lines whose tokens at these places are odd, in the order of their first ranks.

    Args:
        alike: by place, what the first of the others has there.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, places in sorted(odd.items()):
        parts = [lines.columns[place].parts[index] for place in places]
        sides = (_is_word(part) or _is_below(part, alike[place]) for part, place in zip(parts, places, strict=True))
        groups[(*places, lines.words(index), *sides)].append(index)
    for group in groups.values():
        places = odd[group[0]]
        told = ", ".join(_named(lines, group, place) for place in places)
        is_unbounded = any(_is_word(lines.columns[each].parts[group[0]]) or _is_word(alike[each]) for each in places)
        yield Apart(reduce(or_, (lines.ranks[index] for index in group)), told, is_unbounded)


def _is_below(part: str, other: str) -> bool | None:
    if _is_word(other):
        return None
    value, usual = _numbers((part, other))
    return value < usual


def _named(lines: _Lines, group: Sequence[int], place: int) -> str:
    """Return what some lines have at a token, with its name and its unit."""
    token, column, line = lines.token(group[0], place), lines.columns[place], lines.text(group[0])
    text = escapes.ESCAPE.sub(lambda code: " " * len(code[0]), line)
    parts = tuple(column.parts[index] for index in group)
    value = _together(_Column(column.kind, parts), _before(line, token)).strip()
    field = next((each for each in named.read(text).fields if token.start <= each.start < token.end), None)
    if field is None:
        return f"{' '.join(text[: token.start].split()[-_WORDS_BEFORE:])} {value}".strip()
    between = " " if text[field.end : field.end + 1] == " " and field.unit else ""
    return f"{field.name.removesuffix(f' ({field.unit})')}: {value}{between}{field.unit}"


# ---- what they have together ----


def _joined(lines: _Lines) -> Folded:
    """Return lines as one."""
    text = lines.text(0)
    tokens = shape_of(text).tokens
    pieces: list[str] = []
    at = 0
    odd: dict[int, list[int]] = defaultdict(list)
    alike: dict[int, str] = {}
    for place, column in enumerate(lines.columns):
        token = tokens[place]
        before = text[at : token.start]
        at = token.end
        if column.is_one:
            pieces += (before, column.parts[0])
            continue
        words = _before(text, token)
        usual = column
        if some := _odd(lines, place, words):
            usual = column.without(some)
            alike[place] = usual.parts[0]
            for index in some:
                odd[index].append(place)
        pieces += (before, _together(usual, words))
    apart = tuple(_apart(lines, odd, alike)) if odd else ()
    is_many = not all(column.is_one for column in lines.columns)
    return Folded(reduce(or_, lines.ranks), "".join((*pieces, text[at:])), is_many, apart)


def _before(text: str, token: Token) -> str:
    """Return what stands before a token: as much as says whether it is a rank."""
    return text[max(0, token.start - 16) : token.start]


def _together(column: _Column, before: str) -> str:
    """Return what stands for a token of several lines."""
    kind, first = column.kind, column.parts[0]
    if column.is_one:
        return first
    if kind is Kind.HEX:
        return "0x…"
    if kind is Kind.PID:
        return "…"
    if kind is Kind.BAR or (kind is Kind.MOMENT and not _is_wide(column)):
        return f"{_DIM}{first}{_NOT_DIM}"
    if _are_of_ranks(before, column.parts):
        return format_ranks(map(int, set(column.parts)))
    if all(map(_is_word, column.parts)):
        return "/".join(dict.fromkeys(part.strip() for part in column.parts))
    least, greatest = column.ends
    if least == greatest:
        return first
    if kind is Kind.DURATION and greatest - least <= _NEAR_SHARE * abs(greatest):
        return f"{_DIM}{first}{_NOT_DIM}"
    return _RANGE.join(column.parts[column.values.index(value)].strip() for value in (least, greatest))


def _is_wide(column: _Column) -> bool:
    """Whether times of day are so far apart that they are none."""
    least, greatest = min(column.parts), max(column.parts)  # as texts, which is the same, and soon known
    if not all(":" in each for each in (least, greatest)) or _seconds(greatest) - _seconds(least) <= FAR_CLOCK_S:
        return False
    return all(":" in moment for moment in column.parts)  # none is a date


def _are_of_ranks(before: str, parts: Sequence[str]) -> bool:
    """Whether the line says that the numbers are those of ranks, nodes or devices."""
    return _are_small(parts) and _OF_RANKS.search(before) is not None


def _are_ranks(ranks: Sequence[int], parts: Sequence[str]) -> bool:
    """Whether the numbers are the ranks that wrote them."""
    return _are_small(parts) and all(each == 1 << int(part) for each, part in zip(ranks, parts, strict=True))


def _are_small(parts: Sequence[str]) -> bool:
    """Whether these are whole numbers of a few digits."""
    if not parts[0].strip().isdecimal():
        return False
    return "".join(parts).replace(" ", "").isdecimal() and max(map(len, parts)) < 7


def _format(ranks: int) -> str:
    text = format_ranks(_ranks_in(ranks))
    if len(text) <= _MAX_RANKS_CHARACTERS:
        return text
    return f"{text[:_MAX_RANKS_CHARACTERS].rpartition(',')[0]},… {ranks.bit_count()} ranks"


def _ranks_in(ranks: int) -> list[int]:
    return [rank for rank in range(ranks.bit_length()) if ranks >> rank & 1]


def _is_word(part: str) -> bool:
    return part[-1].isalpha()


def _numbers(parts: Collection[str]) -> list[float]:
    try:
        return [*map(float, parts)]
    except ValueError:
        text = "\n".join(parts)
        if ":" in text:
            return [_seconds(part) if ":" in part else float(part.replace(",", "")) for part in parts]
        return [*map(float, text.replace(",", "").split("\n"))]


def _seconds(clock: str) -> float:
    """Return how long 1:02:03.5 is; what stands behind a + or - is a time zone."""
    seconds = 0.0
    for part in clock.partition("+")[0].partition("-")[0].replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def fold_texts(texts: Iterable[tuple[int, Sequence[str]]]) -> list[tuple[int, list[str]]]:
    """Return texts that are alike in all their lines as one, and by itself each whose numbers must not be overlooked.

    Args:
        texts: bit sets of ranks, each with the lines of its text; no rank is in two of them.

    Example:
        >>> fold_texts([(0b01, ["ValueError:", "bad row 17"]), (0b10, ["ValueError:", "bad row 19"])])
        [(3, ['ValueError:', 'bad row 17–19'])]
    """
    groups: dict[Hashable, list[tuple[int, Sequence[str]]]] = defaultdict(list)
    for ranks, lines in texts:
        groups[tuple(key_of(line, "numbers") for line in lines)].append((ranks, lines))
    folded = [each for group in groups.values() for each in _fold_alike(group)]
    return sorted(folded, key=lambda each: each[0] & -each[0])


def _fold_alike(group: list[tuple[int, Sequence[str]]]) -> list[tuple[int, list[str]]]:
    if len(group) == 1:
        return [(ranks, list(lines)) for ranks, lines in group]
    apart = 0
    for place in range(len(group[0][1])):
        for each in spread((ranks, lines[place]) for ranks, lines in group).apart:
            apart |= each.ranks
    main = [(ranks, lines) for ranks, lines in group if not ranks & apart]
    alone = [(ranks, list(lines)) for ranks, lines in group if ranks & apart]
    if not main:
        return alone
    together = 0
    for ranks, _ in main:
        together |= ranks
    lines = [spread((ranks, lines[place]) for ranks, lines in main).text for place in range(len(main[0][1]))]
    return [(together, lines), *alone]
