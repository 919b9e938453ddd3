"""What rows say: lines are read from the nodes that answer, and those of several ranks become one; and each rank's own
line of a row that is in the output of a cell.

Such a row says which lines it stands for: `120:0-6;1120:7` are line 120 of ranks 0 to 6 and line 1120 of rank 7. These
numbers can be some lines off, after progress bars and where much was left out, so a line is looked for around its
number: the nearest one that differs from what the row shows in numbers only.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from monarch_nb.client.logs.lines import LogLine, LogLines, LogWindow, Streams
from monarch_nb.config import cadence, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.logged import MAX_FOLDED_BYTES, final_text, is_alike, is_shown_as, may_differ
from monarch_nb.lines.spreads import spread
from monarch_nb.lines.templates import FoldBy, key_of
from monarch_nb.panel.shown.view import Json

READ_S = patience(5.0)
"""How long a node may take for a window: it is a matter of milliseconds."""
AWAY_S = cadence(10.0)
"""A node that took longer is not asked again for so long."""
BETWEEN_LINES = 32
"""So many lines that nobody wants are read rather than asking twice."""
MAX_LINE_BYTES = 8_192
LINES_AT_ONCE = 8_192
"""So many lines of other ranks are read at a time."""
_UNKNOWN = LogLine("stdout", "", 0)


class Place(NamedTuple):
    """Where a line is: the run, the rank, and the line's number among those that the rank wrote."""

    run: int
    rank: int
    number: int


class Reader:
    """Reads lines. A node that does not answer in time is not asked again for a while.

    Args:
        is_away: returns whether the node of a rank is known not to answer.
    """

    def __init__(
        self, lines: LogLines, streams: Streams = "both", is_away: Callable[[int], bool] = lambda _: False
    ) -> None:
        self._lines, self._streams, self._is_away = lines, streams, is_away
        self._away_until: dict[str, float] = {}

    def is_away(self, rank: int) -> bool:
        """Whether a rank's node is not asked."""
        node = self._lines.node_of(rank)
        return not node or self._is_away(rank) or self._away_until.get(node, 0.0) > time.monotonic()

    async def read(self, places: Iterable[Place], max_line_bytes: int | None = None) -> dict[Place, LogLine]:
        """Return the lines at these places, of nodes that answer; an empty one where there is none."""
        by_node: dict[str, list[Place]] = {}
        for place in places:
            if not self.is_away(place.rank):
                by_node.setdefault(self._lines.node_of(place.rank), []).append(place)
        most_bytes = max_line_bytes or MAX_LINE_BYTES
        read = await asyncio.gather(*(self._read(node, wanted, most_bytes) for node, wanted in by_node.items()))
        return {place: line for lines in read for place, line in lines.items()}

    async def _read(self, node: str, places: Sequence[Place], max_line_bytes: int) -> dict[Place, LogLine]:
        windows = _joined(places)
        try:
            async with asyncio.timeout(READ_S):
                read = await self._lines.read(windows, self._streams, max_line_bytes=max_line_bytes)
        except (NodeUnreachable, TimeoutError):
            self._away_until[node] = time.monotonic() + AWAY_S
            return {}
        lines = {
            Place(window.run, window.rank, window.first + index): line
            for window, found in zip(windows, read, strict=True)
            for index, line in enumerate(found)
        }
        return {place: lines.get(place, _UNKNOWN) for place in places}

    async def first(self, rows: Mapping[int, Sequence[Place]]) -> dict[int, tuple[Place, LogLine]]:
        """Return a line of each row, by the row's number: of the first of its ranks whose node answers."""
        found: dict[int, tuple[Place, LogLine]] = {}
        while True:  # again when a node turns out not to answer: others may have the line
            wanted = {
                row: here
                for row, places in rows.items()
                if row not in found and (here := next((each for each in places if not self.is_away(each.rank)), None))
            }
            if not wanted:
                return found
            lines = await self.read(wanted.values())
            found |= {row: (place, lines[place]) for row, place in wanted.items() if place in lines}

    async def told(self, rows: Mapping[int, Sequence[Place]], by: FoldBy) -> dict[int, Json]:
        """Return what each row says, by its number; nothing of one whose nodes do not answer."""
        firsts = await self.first(rows)
        told = {row: line_facts(line) for row, (_, line) in firsts.items()}
        wide = {row: rows[row] for row, (_, line) in firsts.items() if len(rows[row]) > 1 and _may_differ(line, by)}
        for some in _in_parts(wide, LINES_AT_ONCE):
            known = {firsts[row][0]: firsts[row][1] for row in some}
            others = (place for row in some for place in rows[row] if place not in known)
            known |= await self.read(others, MAX_FOLDED_BYTES)
            for row in some:
                told[row] |= _together(rows[row], known, firsts[row][1].text, by)
                await asyncio.sleep(0)  # others have their turn
        return told


def line_facts(line: LogLine) -> Json:
    """Return what there is to say of one line."""
    told: Json = {"stream": "err" if line.stream == "stderr" else "out", "text": line.text}
    if line.size_bytes > MAX_LINE_BYTES:
        told["size"] = line.size_bytes  # of the whole line
    return told


def _together(places: Sequence[Place], known: Mapping[Place, LogLine], first: str, by: FoldBy) -> Json:
    """Return what stands for the lines of several ranks where they differ, and who is apart."""
    here = {place.rank: final_text(known[place].text) for place in places if place in known}
    key = key_of(final_text(first), by)
    lines = [(1 << rank, text) for rank, text in here.items() if key_of(text, by) == key]  # else it has changed since
    told: Json = {}
    if len({text for _, text in lines}) > 1:
        row = spread(lines)
        told = {"text": row.text, "folded": True}
        if row.apart:
            told["apart"] = [{"ranks": _names(each.ranks), "text": each.text} for each in row.apart]
    if lacking := [place.rank for place in places if place not in known]:
        told["lacking"] = format_ranks(lacking)
    return told


def _may_differ(line: LogLine, by: FoldBy) -> bool:
    return may_differ(final_text(line.text), by)


def _names(ranks: int) -> str:
    return format_ranks(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def _in_parts(rows: Mapping[int, Sequence[Place]], most: int) -> Iterator[list[int]]:
    """Yield the numbers of rows: some at a time, which have at most so many lines, or one."""
    part: list[int] = []
    lines = 0
    for row, places in rows.items():
        if part and lines + len(places) > most:
            yield part
            part, lines = [], 0
        part.append(row)
        lines += len(places)
    if part:
        yield part


def _joined(places: Iterable[Place]) -> list[LogWindow]:
    """Return windows that have all of these lines: few, although they have some more."""
    windows: list[LogWindow] = []
    for (run, rank), of_rank in groupby(sorted(places), key=lambda place: place[:2]):
        first = last = -1
        for _, _, number in of_rank:
            if first >= 0 and number - last > BETWEEN_LINES:
                windows.append(LogWindow(run, rank, first, last + 1 - first))
                first = -1
            first, last = (number if first < 0 else first), number
        windows.append(LogWindow(run, rank, first, last + 1 - first))
    return windows


REACH_LINES = 64
"""So far before and behind its number a line is looked for."""
EXAMPLE_RANKS = 4
MAX_PLACES_CHARACTERS = 4_000
_RANKS = r"\d{1,6}(-\d{1,6})?"
_PLACES = re.compile(rf"\d{{1,15}}:{_RANKS}(,{_RANKS})*(;\d{{1,15}}:{_RANKS}(,{_RANKS})*)*")


def parse_places(text: str, size: int) -> dict[int, int] | None:
    """Return the number of the line of each rank, of `size` ranks; None when the text says no such thing.

    Example:
        >>> parse_places("1120:7;120:0-2", 8)
        {0: 120, 1: 120, 2: 120, 7: 1120}
    """
    if len(text) > MAX_PLACES_CHARACTERS or not _PLACES.fullmatch(text):
        return None
    numbers: dict[int, int] = {}
    for part in text.split(";"):
        number, _, ranks = part.partition(":")
        for piece in ranks.split(","):
            first, _, last = piece.partition("-")
            numbers |= dict.fromkeys(range(int(first), min(size, int(last or first) + 1)), int(number))
    return dict(sorted(numbers.items()))


async def own_lines(reader: Reader, run: int, numbers: Mapping[int, int], shown: str) -> list[Json]:
    """Return the line of each rank: {"ranks", "stream", "text"}, or {"ranks", "absent": why} where there is none.

    Args:
        numbers: about which line it is, by rank.
        shown: the text of the row.
    """
    at_number = {place.rank: line for place, line in (await reader.read(_places(run, numbers))).items()}
    example = next((line.text for line in at_number.values() if is_shown_as(line.text, shown)), None)
    if example is None:
        example = await _example(reader, run, numbers, shown)
    found: dict[int, LogLine] = {}
    if example is not None:
        found = {rank: line for rank, line in at_number.items() if is_alike(line.text, example)}
        rest = {rank: number for rank, number in numbers.items() if rank not in found}
        found |= await _around(reader, run, rest, lambda text: is_alike(text, example))
    return [
        {"ranks": str(rank)} | (line_facts(found[rank]) if rank in found else {"absent": _why_not(reader, rank)})
        for rank in numbers
    ]


def _places(run: int, numbers: Mapping[int, int]) -> list[Place]:
    return [Place(run, rank, number) for rank, number in numbers.items()]


def _why_not(reader: Reader, rank: int) -> str:
    return "its node does not answer" if reader.is_away(rank) else "its log has no such line near here"


async def _example(reader: Reader, run: int, numbers: Mapping[int, int], shown: str) -> str | None:
    """Return a line that the row stands for, which is not where it was thought to be: of one of the first ranks."""
    for rank, number in list(numbers.items())[:EXAMPLE_RANKS]:
        if found := await _around(reader, run, {rank: number}, lambda text: is_shown_as(text, shown)):
            return found[rank].text
    return None


async def _around(
    reader: Reader, run: int, numbers: Mapping[int, int], fits: Callable[[str], bool]
) -> dict[int, LogLine]:
    """Return for each rank the line nearest to its number that fits, as far as there is one."""
    found: dict[int, LogLine] = {}
    ranks = list(numbers)
    at_once = max(1, LINES_AT_ONCE // (2 * REACH_LINES + 1))
    for start in range(0, len(ranks), at_once):
        spans = {rank: _nearest_first(numbers[rank]) for rank in ranks[start : start + at_once]}
        lines = await reader.read(Place(run, rank, number) for rank, span in spans.items() for number in span)
        for rank, span in spans.items():
            near = (lines.get(Place(run, rank, number)) for number in span)
            if line := next((line for line in near if line is not None and fits(line.text)), None):
                found[rank] = line
    return found


def _nearest_first(number: int) -> list[int]:
    return sorted(range(max(0, number - REACH_LINES), number + REACH_LINES + 1), key=lambda other: abs(other - number))
