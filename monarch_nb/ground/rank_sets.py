"""Sets of ranks as people read them."""

import itertools
from collections.abc import Iterable

MOST_NAMED = 8
"""So many nodes are named in a sentence."""


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
    """Return "1 proc", "4 procs" or "10,000 procs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0-2,5`, for sentences."""
    chosen = sorted(set(ranks))
    return f"rank{'' if len(chosen) == 1 else 's'} {format_ranks(chosen)}"


def name_nodes(names: Iterable[str]) -> str:
    """Return `node host1` or `nodes host1, host2`, for sentences; of many the first and how many more there are."""
    chosen = list(dict.fromkeys(names))
    return f"node{'' if len(chosen) == 1 else 's'} {listed(chosen)}"


def listed(names: Iterable[str]) -> str:
    """Return `host1, host2`, each once; of many the first and how many more there are."""
    chosen = list(dict.fromkeys(names))
    more = f" and {len(chosen) - MOST_NAMED:,} more" if len(chosen) > MOST_NAMED else ""
    return f"{', '.join(chosen[:MOST_NAMED])}{more}"
