"""What lines have in common: the text between their numbers.

Two lines with the same template differ only in numbers, and in times if these are all that may differ. A counter such
as `step 5` belongs to the template: a rank that is at step 6 prints another line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import Literal, NamedTuple

FoldBy = Literal["numbers", "times", "equal", "off"]
"""In what lines of one row may differ: in numbers and times, in times, in nothing; or no two lines share a row."""

FOLDS_BY: tuple[FoldBy, ...] = ("numbers", "times", "equal", "off")
FEW_RANKS = 8
"""On so many ranks only times fold unless something else is asked for: who prints four losses wants to see four."""
MAX_FOLDED_CHARACTERS = 2_000
"""Longer lines fold only when they are equal."""
MAX_KNOWN_SHAPES = 4_096
"""So many arrangements of numbers in a line are remembered. With more, all are forgotten and found again."""


class Kind(IntEnum):
    """What a token is."""

    LITERAL = 0  # digits that must be equal: versions, addresses, colours, counters
    NUMBER = 1
    DURATION = 2
    MOMENT = 3  # a date, or a time of day
    HEX = 4
    PID = 5
    BAR = 6  # of progress


class Token(NamedTuple):
    """A place in a line."""

    kind: Kind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the tokens of a line are.

    Attributes:
        template: the line with a mark in place of each token.
        tokens: in order.
        unbounded: which of the tokens are nan or inf.
        has_moments: some tokens are dates or times of day.
        parts: returns the text of each token of a line of this shape.
        literals: returns those that must be equal; None when there are none.
    """

    template: str
    tokens: tuple[Token, ...]
    unbounded: tuple[int, ...]
    has_moments: bool
    parts: Callable[[str], tuple[str, ...]] = field(compare=False)
    literals: Callable[[str], tuple[str, ...]] | None = field(compare=False)


_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<![\w.])\.\d+"
_UNIT = r"(?:[nuµμm]?s|secs?|seconds?|min|minutes?|h|hours?)(?!\w)"
_COUNTERS = "global_step|iteration|iter|steps?|epoch|batch|line|round|it"
_TOKEN = re.compile(
    rf"""
    (?P<colour>\x1b\[[0-?]*[\ -/]*[@-~])
    |(?P<date>(?<!\d)(?:\d{{4}}-\d\d-\d\d|\d{{4}}/\d\d/\d\d|\d\d/\d\d/\d{{4}})(?=[\sT,\])]|$))
    |(?P<time>(?<![\d:.])\d\d:\d\d:\d\d(?:[.,]\d+)?(?:[+-]\d\d:\d\d)?(?![\d:]))
    |(?P<elapsed>(?<![\d:.])\d:\d\d:\d\d(?:\.\d+)?(?![\d:])|(?<=\[)\d+:\d\d(?=<)|(?<=<)\d+:\d\d(?=[,\]]))
    |(?P<hex>(?<!\w)0x[0-9a-fA-F]+)
    |(?P<pid>(?<=pid\ )\d+|(?<=pid=)\d+|(?<=pid:\ )\d+)
    |(?P<bar>(?<=\|)[#█▉▊▋▌▍▎▏\ ]{{2,}}(?=\|))
    |(?P<opaque>\d{{1,3}}(?:\.\d{{3}})+,\d+|\d+(?:\.\d+){{2,}}|(?<=\bv)\d+\.\d+)
    |(?P<counter>(?:(?<=[\s\[({{'"m])|^)(?:{_COUNTERS})['"]?\s*[:=/#]?\s*\d+(?:,\d{{3}})*(?!\d|\.\d))
    |(?P<number>(?:(?<![\w.,)\]\x1b])[-+])?(?:{_NUMBER})(?:[eE][-+]?\d+(?![\w.]))?(?P<duration>\ ?{_UNIT})?
       |(?<![^\Wm])[-+]?(?:nan|inf)(?!\w))
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_HAS_NUMBER = re.compile(r"\d|nan|inf", re.IGNORECASE)
_KINDS = {
    "colour": Kind.LITERAL,
    "opaque": Kind.LITERAL,
    "counter": Kind.LITERAL,
    "date": Kind.MOMENT,
    "time": Kind.MOMENT,
    "elapsed": Kind.DURATION,
    "hex": Kind.HEX,
    "bar": Kind.BAR,
    "pid": Kind.PID,
    "number": Kind.NUMBER,
}
_MARKS = {kind: f"\0{kind.value}" for kind in Kind}
SAME_DIGITS = bytes.maketrans(b"123456789", b"000000000")

_shapes: dict[bytes, Shape] = {}


def shape_of(text: str) -> Shape:
    """Return where the tokens of a line are.

    Lines whose digits stand in the same places have the same shape, so most lines are not searched again.

    Example:
        >>> [(token.kind.name, token.start, token.end) for token in shape_of("loss 2.5 in 31 ms").tokens]
        [('NUMBER', 5, 8), ('DURATION', 12, 14)]
    """
    skeleton = text.encode("utf-8", "surrogatepass").translate(SAME_DIGITS)
    shape = _shapes.get(skeleton)
    if shape is None:
        if len(_shapes) >= MAX_KNOWN_SHAPES:
            _shapes.clear()
        shape = _shapes[skeleton] = _find_shape(text)
    return shape


def _find_shape(text: str) -> Shape:
    tokens: list[Token] = []
    pieces: list[str] = []
    at = 0
    for found in _TOKEN.finditer(text) if _HAS_NUMBER.search(text) else ():
        kind, start, end = _KINDS[found.lastgroup or ""], *found.span()
        if found["duration"] is not None:
            kind, end = Kind.DURATION, found.start("duration")
        tokens.append(Token(kind, start, end))
        pieces += (text[at:start], _MARKS[kind])
        at = end
    literals = [token for token in tokens if token.kind is Kind.LITERAL]
    return Shape(
        "".join((*pieces, text[at:])),
        tuple(tokens),
        tuple(
            place for place, token in enumerate(tokens) if token.kind is Kind.NUMBER and text[token.end - 1].isalpha()
        ),
        any(token.kind is Kind.MOMENT for token in tokens),
        parts=_slicer(tokens),
        literals=_slicer(literals) if literals else None,
    )


def _slicer(tokens: list[Token]) -> Callable[[str], tuple[str, ...]]:
    """Return what takes the text of each token out of a line."""
    slices = [slice(token.start, token.end) for token in tokens]
    if len(slices) > 1:
        return itemgetter(*slices)
    return lambda text: tuple(text[one] for one in slices)


def key_of(text: str, by: FoldBy) -> Hashable:
    """Return what lines have in common that may share a row; for "off" the line itself, as for "equal".

    Example:
        >>> key_of("step 5: loss 2.31", "numbers") == key_of("step 5: loss 2.5", "numbers")
        True
        >>> key_of("step 5: loss 2.31", "numbers") == key_of("step 6: loss 2.31", "numbers")
        False
    """
    if by in ("equal", "off") or len(text) > MAX_FOLDED_CHARACTERS:
        return text
    shape = shape_of(text)
    if by == "times":
        return _without_moments(text, shape) if shape.has_moments else text
    if shape.literals is None:
        return shape.template if shape.tokens else text
    return shape.template, shape.literals(text)


def _without_moments(text: str, shape: Shape) -> str:
    pieces: list[str] = []
    at = 0
    for kind, start, end in shape.tokens:
        if kind is Kind.MOMENT:
            pieces += (text[at:start], _MARKS[kind])
            at = end
    return "".join((*pieces, text[at:]))


def checked_fold(text: str) -> FoldBy | None:
    """Return the way to fold that a text names, None if it is none."""
    return next((by for by in FOLDS_BY if by == text), None)


def default_fold(ranks: int) -> FoldBy:
    """Return how lines of so many ranks fold unless something else is asked for."""
    return "numbers" if ranks > FEW_RANKS else "times"
