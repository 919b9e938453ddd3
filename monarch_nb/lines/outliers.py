"""Which numbers of ranks are far from all others: one rule for lines and for values.

The fewer others there are, the less their least and their greatest say about how far numbers spread: of three, one is
often much further away than the other two are from each other. So far is
`FAR + FEW / (others - 2) ** 2` times the distance between the least and the greatest of the others: 127 times with 3
others, 16 times with 5, 5.5 times with 8, 2.6 times with 16, twice with 100. Of 200,000 sets of normally distributed
numbers, at most 1 in 7,000 then had one that is called far, of 4 to 128 ranks; of sets as skewed as durations are
(lognormal, sigma 0.5), at most 1 in 250.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

LEAST_OTHERS = 3
FAR, FEW = 2.0, 125.0
_MOST_ENDS = 32
"""So many different numbers at either end may be far."""
_SAMPLE = 4 * _MOST_ENDS

Real = int | float


def times_as_far(others: int) -> float:
    """Return how many times as far as so many others are from each other a number is when it is far from them.

    Example:
        >>> [round(times_as_far(others), 1) for others in (3, 5, 8, 16, 100)]
        [127.0, 15.9, 5.5, 2.6, 2.0]
    """
    return float(FAR + FEW / (others - 2) ** 2)


def may_be_outside(values: Sequence[Real], most: int, bounds: tuple[Real, Real]) -> bool:
    """Whether at most so many of these may be far from the others: false of nearly all, and soon known.

    Of many, a sample says how far the others are from each other at least.

    Args:
        bounds: the least and the greatest of the values.
    """
    ends = min(_MOST_ENDS, most)
    if len(values) <= 2 * ends:
        return True
    ordered = sorted(values[:: max(1, len(values) // _SAMPLE)])
    least, greatest = ordered[ends], ordered[-1 - ends]
    core = FAR * (greatest - least)
    if least - bounds[0] <= core and bounds[1] - greatest <= core:
        return False
    if len(ordered) < len(values):
        ordered = sorted(values)
        core = FAR * (ordered[-1 - ends] - ordered[ends])
    return any(
        after - before > core
        for part in (ordered[: ends + 1], ordered[-1 - ends :])
        for before, after in itertools.pairwise(part)
    )


def outside(
    values: Sequence[Real],
    most: int,
    sizes: Sequence[int] | None = None,
    *,
    share: float = 0.0,
    rounding: float = 0.0,
    least: float = 0.0,
) -> list[int]:
    """Return which of the values are far from all others, the least first.

    Args:
        most: at most so many are: more are no exception, and then none is.
        sizes: how many ranks have each value; one each when not said. `most` counts ranks.
        share: of the median of the others: they are further away than that.
        rounding: by so much the others may differ without that it shows.
        least: they are further away than that.

    Raises:
        OverflowError: whole numbers are larger than a float can be.

    Example:
        >>> outside([9000, 9010, 9020, 9005, 12, 9001], most=1)
        [4]
    """
    sizes = sizes or [1] * len(values)
    count = sum(sizes)
    most = min(most, count - LEAST_OTHERS)
    if most <= 0:
        return []
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[index] for index in order]
    weights = [sizes[index] for index in order]
    lows, highs = _ends(weights, most), _ends(weights[::-1], most)
    best, chosen = 0, (0, 0)
    for low, below in enumerate(lows):
        for high, above in enumerate(highs):
            removed = below + above
            if not best < removed <= most or low + high >= len(ordered):
                continue
            first, last, middle = low, len(ordered) - 1 - high, (low + len(ordered) - high) // 2
            width = max(ordered[last] - ordered[first], rounding)
            far = max(times_as_far(count - removed) * width, share * abs(ordered[middle]), least)
            is_low = not low or ordered[first] - ordered[first - 1] > far
            if is_low and (not high or ordered[last + 1] - ordered[last] > far):
                best, chosen = removed, (low, high)
    low, high = chosen
    return [*order[:low], *order[len(order) - high :]]


def _ends(weights: Sequence[int], most: int) -> list[int]:
    """Return how many ranks have none of the first values, the first, the first two and so on: `most` at most."""
    totals = [0]
    for weight in weights[:_MOST_ENDS]:
        if totals[-1] + weight > most:
            break
        totals.append(totals[-1] + weight)
    return totals
