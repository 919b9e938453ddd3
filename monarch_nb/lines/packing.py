"""Lines of several ranks with one template, packed: one rank's text, and what each rank has in place of its numbers.

The columns of a line are what the ranks have at each place where lines of one template may differ: one part when all
have the same, else a part for each rank. They are kept as one text until somebody opens the line or asks for numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import itemgetter

from monarch_nb.lines.templates import MAX_FOLDED_CHARACTERS, Kind, numbers_keys, shape_of, shapes_of

_COLUMN, _PART = "\t", "\x1f"
"""What stands between columns, and between parts: no number, time or bar has one of them."""
_BEYOND_COLOURS = re.compile(r"[\r\b]|\x1b(?!\[[0-9;:]*m)")

Columns = tuple[str, ...]
"""Those of a line: the parts of each with `_PART` between them."""


class LineOfMany(str):
    """A line of several ranks, as one of them wrote it, mostly the first.

    Attributes:
        ranks: in the order of the columns' parts.
        columns: of the line.

    Example:
        >>> line = LineOfMany.make("loss 2.31", (4, 7), "2.31\\x1f2.5")
        >>> line.of(7)
        'loss 2.5'
    """

    __slots__ = ("columns", "ranks")
    columns: str
    ranks: tuple[int, ...]

    @staticmethod
    def make(text: str, ranks: tuple[int, ...], columns: str) -> LineOfMany:
        """Return a line that ranks have, with these columns."""
        line = LineOfMany(text)
        line.ranks, line.columns = ranks, columns
        return line

    def of(self, rank: int) -> str:
        """Return what one of its ranks wrote."""
        index = self.ranks.index(rank)
        return filled(self, [_part(column, index) for column in split(self.columns)])

    def seen_from(self, rank: int) -> LineOfMany:
        """Return the same line as one of its ranks wrote it."""
        return self if rank == self.ranks[0] else LineOfMany.make(self.of(rank), self.ranks, self.columns)


def lines_of_many(ranks: tuple[int, ...], columns: str, lines: Sequence[str] | None) -> list[str] | None:
    """Return the lines that ranks have, with these columns; None when they are others than those that were packed.

    Args:
        lines: of the first of them, as a terminal shows them: colours may be said in other codes.
    """
    of_each = columns.split("\n")
    if lines is None or len(lines) != len(of_each):
        return None
    made: list[str] = []
    for line, of in zip(lines, of_each, strict=True):
        if not differs(of):
            made.append(line)
        elif "\x1b" not in line or shape_of(line).free(line) == tuple(_part(one, 0) for one in split(of)):
            made.append(LineOfMany.make(line, ranks, of))
        else:
            return None
    return made


def is_packable(text: str) -> bool:
    """Whether whole lines look the same wherever a terminal writes them: they move no cursor."""
    return ("\x1b" not in text and "\r" not in text and "\b" not in text) or not _BEYOND_COLOURS.search(text)


def keys_and_columns(lines: Sequence[str]) -> tuple[Sequence[Hashable], list[Columns]]:
    """Return what lines have in common with those that are alike, and the columns of each, of one rank."""
    if max(map(len, lines), default=0) > MAX_FOLDED_CHARACTERS:
        return lines, [()] * len(lines)
    shapes = shapes_of(lines)
    return numbers_keys(lines, shapes), [shape.free(line) for shape, line in zip(shapes, lines, strict=True)]


def joined(lines: Sequence[Columns], counts: Sequence[int]) -> Columns:
    """Return the columns of one line that ranks have of whom some have these, some those: so many have each.

    Example:
        >>> joined([("5", "2.31"), ("5", "2.5\\x1f2.6")], [1, 2])
        ('5', '2.31\\x1f2.5\\x1f2.6')
    """
    return tuple([_joined(parts, counts) for parts in zip(*lines, strict=True)])


def _joined(columns: tuple[str, ...], counts: Sequence[int]) -> str:
    first = columns[0]
    if _PART not in first and columns.count(first) == len(columns):
        return first
    if len(columns) != sum(counts):
        columns = tuple(
            column if count == 1 or _PART in column else _PART.join([column] * count)
            for column, count in zip(columns, counts, strict=True)
        )
    return _PART.join(columns)


def chosen(columns: Columns, indexes: Sequence[int]) -> Columns:
    """Return the columns of some of the ranks only."""
    of = itemgetter(*indexes)
    return tuple(
        _together(of(column.split(_PART)) if len(indexes) > 1 else (of(column.split(_PART)),))
        if _PART in column
        else column
        for column in columns
    )


def _together(parts: tuple[str, ...]) -> str:
    return parts[0] if parts.count(parts[0]) == len(parts) else _PART.join(parts)


def parts_of(column: str) -> list[str]:
    """Return what each rank has, or the one part that all have."""
    return column.split(_PART)


def _part(column: str, index: int) -> str:
    return column.split(_PART)[index] if _PART in column else column


def text_of(columns: Columns) -> str:
    """Return the columns of a line as one text; `split` is its reverse."""
    return _COLUMN.join(columns)


def split(text: str) -> Columns:
    """Return columns that stand in one text."""
    return tuple(text.split(_COLUMN)) if text else ()


def differs(text: str) -> bool:
    """Whether ranks have different parts."""
    return _PART in text


def filled(line: str, parts: Iterable[str]) -> str:
    """Return a line with other parts at the places where lines of its template may differ.

    Example:
        >>> filled("step 5: loss 2.31", ["2.5"])
        'step 5: loss 2.5'
    """
    return "".join(_pieces(line, parts))


def _pieces(line: str, parts: Iterable[str]) -> Iterator[str]:
    at = 0
    tokens = (token for token in shape_of(line).tokens if token.kind is not Kind.LITERAL)
    for token, part in zip(tokens, parts, strict=True):
        yield line[at : token.start]
        yield part
        at = token.end
    yield line[at:]


def opened(text: str, columns: str, index: int) -> str:
    """Return the whole lines of one of the ranks, from the first one's and all columns."""
    lines = zip(text.split("\n")[:-1], columns.split("\n"), strict=True)
    return "".join(
        f"{filled(line, [_part(column, index) for column in split(of)]) if differs(of) else line}\n"
        for line, of in lines
    )
