"""In which order rows are shown: what a rank writes together stays together, as far as it does not fold.

Folding puts the third line of a rank beside the third lines of the others. So rows of tensors that differ would take
turns rank by rank. Here they become blocks of one set of ranks each. A block ends

- where a line folds with other ranks' lines: it comes after all that they wrote before it;
- where a line is like one before it but for numbers: so ranks stay side by side in a loop, step by step;
- some time after its beginning.

Lines that continue what came before may be alike: those that are blank, indented more than the block's first, or within
brackets or a drawn table.

The lines of brackets, of a drawn table, or of a frame as pandas prints it, are one unit, which folds as a whole: ranks
share it when they have the same row for each of its lines. Of ranks that differ in one line each has all of it, also
the lines that are equal. Below a line that ends with its bracket each line says what it is, as in a configuration:
these fold line by line as long as ranks differ in few of them. Pure.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from monarch_nb.config import cadence
from monarch_nb.ground import escapes
from monarch_nb.lines.templates import shape_of
from monarch_nb.notebook.output.rows import Row, TextRow

TOGETHER_S = cadence(0.06)
"""What ranks print at once comes at once, or with the allocator's next look."""
BLOCK_S = cadence(0.15)
"""The lines of a unit come at once, or in a few pieces."""
MAX_COPIES = 10_000
"""So many lines that ranks share are shown once more for units that differ. Beyond that they fold as other lines."""
_BEGINNING_CHARACTERS = 200
"""Lines that are alike so far count as alike."""
_CONTINUING = tuple(")]}|+│┃├└╰┡┗")
"""What the next line of something begins with: of brackets and of tables."""
_TABLE_BEGINS = ("+-", "+=", *"┏┌╭╔")
_FRAME_INDENT = 2
"""The names of a frame's columns stand behind those of its rows, and all of its lines are equally long."""
_BRACKETS = 2
"""Lines that ranks have in common without having anything in common."""
_TABLE_GOES_ON = tuple("|+│┃├└╰┡┗┣║╠╚")

Part: TypeAlias = tuple[Row, int]
"""A row, and for which of its ranks it stands there."""


def blocks_of(rows: Iterable[Row]) -> list[list[Part]]:
    """Return rows, which are in order, in the order in which they are shown; no rank's own order changes.

    Each list is a block. What belongs to none is a list of its own.
    """
    blocks: list[_Block] = []
    growing: dict[int, _Block] = {}  # the newest block of ranks, by their set: no rank is in two
    ranks = 0  # in any of them
    for unit in _units_of(rows):
        grows = growing.get(unit.ranks)
        if grows is not None and grows.takes(unit):
            continue
        block = _Block(unit)
        blocks.append(block)
        if grows is None and unit.ranks & ranks:
            met = [each for each in growing.values() if each.ranks & unit.ranks]
            ended = [each for each in met if not each.passes(block)]
            for each in ended:
                del growing[each.ranks]
                ranks &= ~each.ranks
            if len(ended) < len(met):
                continue
        growing[unit.ranks] = block
        ranks |= unit.ranks
    return [parts for block in blocks if (parts := block.parts())]


def without_begun(blocks: list[list[Part]], now_s: float) -> list[list[Part]]:
    """Return blocks but those that are their ranks' newest, came just now and end within brackets: the rest comes."""
    later, kept = 0, []
    for block in reversed(blocks):
        newest, ranks = block[-1]
        is_newest = not ranks & later and isinstance(newest, TextRow) and now_s - newest.came_s <= BLOCK_S
        later |= ranks
        if not (is_newest and _is_begun(row for row, _ in block)):
            kept.append(block)
    return kept[::-1]


def shown_parts(blocks: Iterable[Iterable[Part]]) -> Iterator[Row]:
    """Yield what blocks show."""
    for block in blocks:
        for row, ranks in block:
            yield row if ranks == row.ranks else row.part(ranks)


def _units_of(rows: Iterable[Row]) -> list[_Unit]:
    """Return rows as units, in the order of their first rows, then of their first ranks."""
    units: list[_Unit] = []
    newest: dict[int, _Unit] = {}  # of ranks, by their set: no rank is in two
    places: dict[int, int] = {}
    ranks = copies = 0
    for place, row in enumerate(rows):
        places[id(row)] = place
        left = row.ranks
        if left & ranks:
            same = newest.get(left)
            for of, unit in [(left, same)] if same else [each for each in newest.items() if each[0] & left]:
                del newest[of]
                if others := of & ~row.ranks:
                    newest[others] = unit
                if not isinstance(row, TextRow) or not (going := unit.taking(row, of)):
                    continue
                if going == unit.ranks == row.ranks or copies < MAX_COPIES:
                    grown = unit.grown(row, going)
                    copies += going != row.ranks
                    if grown is not unit:
                        units.append(grown)
                        copies += len(unit.rows)
                    newest[going] = grown
                    left &= ~going
        if left:
            unit = newest[left] = _Unit(place, left, [row])
            units.append(unit)
        ranks |= row.ranks
    return sorted(_by_line(units, places), key=lambda unit: (unit.place, unit.ranks & -unit.ranks))


def _by_line(units: Iterable[_Unit], places: Mapping[int, int]) -> Iterator[_Unit]:
    """Yield units, and of those that differ in few of their lines each line.

    Args:
        places: of rows, by their `id`.
    """
    together: dict[int, list[_Unit]] = {}
    for unit in units:
        if unit.may_go_by_line:
            together.setdefault(unit.place, []).append(unit)
        else:
            yield unit
    for alike in together.values():
        everyone = functools.reduce(operator.or_, (unit.ranks for unit in alike))
        rows: dict[int, tuple[Row, int]] = {}  # by place, with the ranks
        for unit in alike:
            for row in unit.rows:
                rows[places[id(row)]] = row, unit.ranks | rows.get(places[id(row)], (row, 0))[1]
        equal = sum(ranks == everyone for _, ranks in rows.values())
        differing = max(len(unit.rows) for unit in alike) - equal
        if differing > equal - _BRACKETS:
            yield from alike
        else:
            yield from (_Unit(place, ranks, [row]) for place, (row, ranks) in rows.items())


class _Unit:
    """A row, or the rows of what is shown whole, for some of their ranks.

    Attributes:
        place: of its first row among all.
        ranks: bit set of them.
        rows: one after the other.
        may_go_by_line: it is no more than its lines where ranks differ in few of them.
    """

    __slots__ = ("_depth", "_indent", "_is_table", "_width", "may_go_by_line", "place", "ranks", "rows")

    def __init__(self, place: int, ranks: int, rows: list[Row]) -> None:
        self.place, self.ranks, self.rows = place, ranks, rows
        text = rows[0].text if isinstance(rows[0], TextRow) else ""
        self._indent = _indent(text)
        self.may_go_by_line = text.endswith(("(", "[", "{"))
        self._depth = _depth_after(text, 0)
        self._is_table = text.startswith(_TABLE_BEGINS, self._indent)
        self._width = len(text) if self._indent >= _FRAME_INDENT else 0

    def taking(self, row: TextRow, ranks: int) -> int:
        """Return for which of some ranks of it a row belongs to it."""
        first = self.rows[0]
        if not isinstance(first, TextRow) or row.stream != first.stream:
            return 0
        going = row.ranks & ranks & ~row.late
        if going != self.ranks and (row.is_settled or first.is_settled):
            return 0  # what a part of it wrote is no longer known
        return going if going and self._goes_on(row.text) else 0

    def _goes_on(self, text: str) -> bool:
        if self._depth:
            return _is_continued(self._indent, text)
        if self._is_table:
            return text.startswith(_TABLE_GOES_ON, _indent(text))
        if self._width == len(text) > _indent(text) and (len(self.rows) > 1 or not text[0].isspace()):
            return True
        # `print` puts a blank between a text that ends its line and a tensor
        return _indent(text) == 1 and _depth_after(text, 0) > 0

    def grown(self, row: TextRow, ranks: int) -> _Unit:
        """Return it with one more row, for some of its ranks: itself when these are all, else a new one."""
        unit = self
        if ranks != self.ranks:
            self.ranks &= ~ranks
            unit = _Unit(self.place, ranks, self.rows.copy())
            unit._depth = self._depth
        unit.rows.append(row)
        unit._depth = _depth_after(row.text, unit._depth)
        return unit


class _Block:
    """Rows of the same ranks, one after the other.

    Attributes:
        ranks: bit set of them.
    """

    __slots__ = ("_given", "_indent", "_passed", "_rows", "_templates", "ranks")

    def __init__(self, unit: _Unit) -> None:
        first = unit.rows[0]
        self.ranks = unit.ranks
        self._rows = unit.rows.copy()
        self._passed: list[_Block] = []  # since its newest row: each is a row of these ranks and of others
        self._given = 0  # ranks in whose blocks its row is shown
        self._indent = _indent(first.text) if isinstance(first, TextRow) else 0
        self._templates = {_template(first)} if isinstance(first, TextRow) else set()

    def takes(self, unit: _Unit) -> bool:
        """Take a unit of its ranks if it belongs to it; return whether it does."""
        row = unit.rows[0]
        if not isinstance(row, TextRow) or not self._is_soon(row):
            return False
        if _is_continued(self._indent, row.text):
            if len(self._passed) > len(self._rows):
                return False
            for block in self._passed:
                self._rows += block._rows
                block._given |= self.ranks
            self._passed.clear()
        else:
            template = _template(row)
            if self._passed or template in self._templates:
                return False
            self._templates.add(template)
        self._rows += unit.rows
        return True

    def passes(self, block: _Block) -> bool:
        """Return whether it may go on after a row of all of its ranks and of others."""
        row = block._rows[0]
        if len(block._rows) > 1 or self.ranks & ~block.ranks or not isinstance(row, TextRow) or row.is_settled:
            return False
        if not (self._is_soon(row) and _is_continued(self._indent, row.text)):
            return False
        self._passed.append(block)
        return True

    def _is_soon(self, row: TextRow) -> bool:
        first = self._rows[0]
        return isinstance(first, TextRow) and row.came_s - first.came_s <= TOGETHER_S

    def parts(self) -> list[Part]:
        """Return its rows; none when all of it is shown in others."""
        ranks = self.ranks & ~self._given
        return [(row, ranks) for row in self._rows] if ranks else []


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_continued(first: int, text: str) -> bool:
    """Return whether a line continues what begins with a line that is indented so much."""
    indent = _indent(text)
    begins = text[indent : indent + 1]
    return not begins or begins in _CONTINUING or indent > first or (indent > 0 and not begins.isalnum())


def _is_begun(rows: Iterable[Row]) -> bool:
    depth = 0
    for row in rows:
        depth = _depth_after(row.text, depth) if isinstance(row, TextRow) else 0
    return depth > 0


def _depth_after(text: str, depth: int) -> int:
    """Return how many brackets are open after a line."""
    text = escapes.strip(text)
    return max(0, depth + sum(map(text.count, "([{")) - sum(map(text.count, ")]}")))


def _template(row: TextRow) -> tuple[str, str]:
    return row.stream, shape_of(row.text[:_BEGINNING_CHARACTERS]).template
