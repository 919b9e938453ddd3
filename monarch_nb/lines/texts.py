"""Texts of several lines that differ only in numbers, as tracebacks of many ranks do, become one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from monarch_nb.lines.spreads import spread
from monarch_nb.lines.templates import key_of


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
