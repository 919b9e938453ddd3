"""How far the clocks of hosts are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_LOOKS = 8


class Clock(NamedTuple):
    """How far a clock is ahead of this computer's, and by how much that may be wrong."""

    ahead_ns: float
    error_ns: float


def clocks_of(boots: Mapping[int, str], look: Callable[[int], int]) -> dict[str, Clock]:
    """Return the clocks of the hosts of ranks, by what processes with the same clock have in common.

    A rank is asked for its time some times. The answer that came fastest counts: it was made in the middle between
    question and answer, give or take half of that time. When all ranks have one clock, nobody is asked.

    Args:
        boots: of each rank, what is the same for all that have the same clock.
        look: returns the time of a rank, in nanoseconds.
    """
    first_of: dict[str, int] = {}
    for rank, boot in sorted(boots.items()):
        first_of.setdefault(boot, rank)
    if len(first_of) == 1:
        return {boot: Clock(0.0, 0.0) for boot in first_of}
    return {boot: min((_look(rank, look) for _ in range(_LOOKS)), key=_error) for boot, rank in first_of.items()}


def _error(clock: Clock) -> float:
    return clock.error_ns


def _look(rank: int, look: Callable[[int], int]) -> Clock:
    asked_ns = time.time_ns()
    there_ns = look(rank)
    half_ns = (time.time_ns() - asked_ns) / 2
    return Clock(there_ns - asked_ns - half_ns, half_ns)  # no time since 1970 as a float: those are 256 ns apart
