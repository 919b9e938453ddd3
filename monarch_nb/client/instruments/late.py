"""Who is late, of ranks that wait for each other in collectives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

LEAST_WAIT = 0.25
"""Others wait when they spend so much of their time in collectives, and so much more than the one that is late."""
_NEAR = 0.25
"""Who is at most this part of the distance away from the one that waits least is late, too."""


def late_among(waits: Mapping[int, float]) -> tuple[int, ...]:
    """Return the ranks that the others wait for; none when no rank waits, or all do, or half of them do not.

    Args:
        waits: the share of its time that each rank waits in collectives.

    Example:
        >>> late_among({0: 0.9, 1: 0.1, 2: 0.8})
        (1,)
    """
    if len(waits) < 2:
        return ()
    least, *others = sorted(waits.values())
    typical = median(others)
    if typical < LEAST_WAIT or typical - least < LEAST_WAIT:
        return ()
    late = tuple(rank for rank, share in waits.items() if share <= least + _NEAR * (typical - least))
    return late if 2 * len(late) <= len(waits) else ()
