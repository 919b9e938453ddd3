"""Each rank's own line of a row that is in the output of a cell, found in the logs.

The row says which lines it stands for: `120:0-6;1120:7` are line 120 of ranks 0 to 6 and line 1120 of rank 7. These
numbers can be some lines off, after progress bars and where much was left out, so a line is looked for around its
number: the nearest one that differs from what the row shows in numbers only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from monarch_nb.client.logs.lines import LogLine
from monarch_nb.lines.logged import is_alike, is_shown_as
from monarch_nb.panel.logs.reading import LINES_AT_ONCE, Place, Reader, line_facts
from monarch_nb.panel.shown.view import Json

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
