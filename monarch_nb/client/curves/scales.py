"""From numbers to places in a picture, and the round numbers beside it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb.lines.pictures import Picture


@dataclass(frozen=True)
class Scale:
    """From numbers to places in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def extents(pictures: Sequence[Picture]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return between which numbers curves are, on both axes."""
    bands = [part for picture in pictures for part in picture.band if part is not None]
    xs = [x for picture in pictures for x in (*picture.xs, *(at for at, _ in picture.marks))]
    ys = [y for picture in pictures for y in picture.ys]
    xs += [x for x, _, _ in bands]
    ys += [y for _, low, high in bands for y in (low, high)]
    return _extent(xs, 0.0), _extent(ys, 0.06)


def _extent(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high <= low:
        size = abs(low) * 0.1 or 1.0
        return low - size, high + size
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two.

    Example:
        >>> ticks(0.0, 9.7, 5)
        [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    raw = (high - low) / most
    if not math.isfinite(raw) or raw <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [tick * step for tick in range(first, min(last, first + 2 * most) + 1)]


def short(value: float) -> str:
    """Return a number in few characters.

    Example:
        >>> short(12500.0), short(2e9), short(0.00004), short(0.30000000000000004)
        ('12.5k', '2G', '4e-05', '0.3')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e15:
            return f"{value / (1e3 if letter == 'k' else size):.5g}{letter}"
    return f"{value:.4g}"
