"""What lines have in common: the text between their numbers.

Two lines with the same template differ only in numbers, and in times if these are all that may differ. A counter such
as `step 5` belongs to the template: a rank that is at step 6 prints another line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Sequence
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
    """A place in a line. Blanks before a number that make it as wide as others are part of it, but for one."""

    kind: Kind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the tokens of a line are.

    Attributes:
        template: the line with a mark in place of each token.
        tokens: in order.
        parts: returns the text of each token of a line of this shape.
        free: returns the text of each token that may differ between lines of one template.
        literals: returns what must be equal of a line besides its template; None when that is nothing.
        timeless: returns what a line has between its dates and times of day; None when there are none.
    """

    template: str
    tokens: tuple[Token, ...]
    parts: Callable[[str], tuple[str, ...]] = field(compare=False)
    free: Callable[[str], tuple[str, ...]] = field(compare=False)
    literals: Callable[[str], Hashable] | None = field(compare=False)
    timeless: Callable[[str], Hashable] | None = field(compare=False)


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
_SAME_DIGITS = bytes.maketrans(b"123456789", b"000000000")

_shapes: dict[bytes, Shape] = {}


def skeletons_of(lines: bytes) -> bytes:
    """Return lines with the same digit in place of all: lines that have one skeleton have one shape. `0x`, which begins
    a hex number, stays another one than `1x`."""
    return lines.replace(b"0x", b"\1x").translate(_SAME_DIGITS)


def shape_of(text: str) -> Shape:
    """Return where the tokens of a line are.

    Lines whose digits stand in the same places have the same shape, so most lines are not searched again.

    Example:
        >>> [(token.kind.name, token.start, token.end) for token in shape_of("loss 2.5 in 31 ms").tokens]
        [('NUMBER', 5, 8), ('DURATION', 12, 14)]
    """
    skeleton = skeletons_of(text.encode("utf-8", "surrogatepass"))
    return _shapes.get(skeleton) or _remember_shape(skeleton, text)


def shapes_of(texts: Sequence[str]) -> list[Shape]:
    """Return the shape of each of many lines, for less than one after the other."""
    skeletons = skeletons_of("\n".join(texts).encode("utf-8", "surrogatepass")).split(b"\n")
    if len(skeletons) != len(texts):  # some are lines in several lines, or there are none
        return [shape_of(text) for text in texts]
    known = _shapes.get
    return [known(skeleton) or _remember_shape(skeleton, text) for skeleton, text in zip(skeletons, texts, strict=True)]


def _remember_shape(skeleton: bytes, text: str) -> Shape:
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
        if kind in (Kind.NUMBER, Kind.DURATION):
            while text.endswith("  ", at, start):  # padding, but for one blank
                start -= 1
        tokens.append(Token(kind, start, end))
        pieces += (text[at:start], _MARKS[kind])
        at = end
    literals = [slice(start, end) for kind, start, end in tokens if kind is Kind.LITERAL]
    moments = [(start, end) for kind, start, end in tokens if kind is Kind.MOMENT]
    between = zip((0, *(end for _, end in moments)), (*(start for start, _ in moments), len(text)), strict=True)
    return Shape(
        "".join((*pieces, text[at:])),
        tuple(tokens),
        parts=_slicer([slice(start, end) for _, start, end in tokens]),
        free=_slicer([slice(start, end) for kind, start, end in tokens if kind is not Kind.LITERAL]),
        literals=itemgetter(*literals) if literals else None,
        timeless=itemgetter(*itertools.starmap(slice, between)) if moments else None,
    )


def _slicer(slices: list[slice]) -> Callable[[str], tuple[str, ...]]:
    """Return what takes these pieces out of a line."""
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
    return _key(text, shape_of(text), by)


def keys_of(texts: Sequence[str], by: FoldBy) -> Sequence[Hashable]:
    """Return the key of each of many lines, for less than one after the other.

    Example:
        >>> keys_of(["loss 2.31", "done"], "numbers") == [key_of("loss 2.31", "numbers"), key_of("done", "numbers")]
        True
    """
    if by in ("equal", "off"):
        return texts
    if max(map(len, texts), default=0) > MAX_FOLDED_CHARACTERS:
        return [key_of(text, by) for text in texts]
    shapes = shapes_of(texts)
    if by == "times":
        return [shape.timeless(text) if shape.timeless else text for text, shape in zip(texts, shapes, strict=True)]
    return numbers_keys(texts, shapes)


def numbers_keys(texts: Sequence[str], shapes: Sequence[Shape]) -> list[Hashable]:
    """Return what lines of these shapes have in common with those that differ only in numbers and times."""
    return [
        (shape.template, shape.literals(text)) if shape.literals else shape.template
        for text, shape in zip(texts, shapes, strict=True)
    ]


def _key(text: str, shape: Shape, by: FoldBy) -> Hashable:
    if by == "times":
        return shape.timeless(text) if shape.timeless else text
    return (shape.template, shape.literals(text)) if shape.literals else shape.template


def checked_fold(text: str) -> FoldBy | None:
    """Return the way to fold that a text names, None if it is none."""
    return next((by for by in FOLDS_BY if by == text), None)


def default_fold(ranks: int) -> FoldBy:
    """Return how lines of so many ranks fold unless something else is asked for."""
    return "numbers" if ranks > FEW_RANKS else "times"
