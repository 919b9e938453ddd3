"""Sets of ranks as people read them."""

import itertools
from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the shortest text for a set of ranks.

    Example:
        >>> format_ranks([0, 1, 2, 3, 6, 9])
        '0-3,6,9'
    """
    parts = []
    for _, group in itertools.groupby(enumerate(sorted(set(ranks))), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def counted(count: int, noun: str) -> str:
    """Return "1 proc" or "4 procs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0-2,5`, for sentences."""
    chosen = sorted(set(ranks))
    return f"rank{'' if len(chosen) == 1 else 's'} {format_ranks(chosen)}"
