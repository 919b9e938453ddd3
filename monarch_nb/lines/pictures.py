"""What is drawn of a name's numbers: one rank's line, a band over all ranks where they differ, and what was last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from monarch_nb.lines.thinning import INF, NAN, Band, Bucket, Buckets, line_of, merged_bands

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0}
_SECONDS |= {"second": 1.0, "seconds": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1.0, "bytes": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DIMENSIONS = (_SECONDS, _BYTES)


def factor(unit: str, other: str) -> float | None:
    """Return by what a number of one unit is multiplied to be one of another; None when they can not be compared.

    Example:
        >>> factor("s", "ms")
        1000.0
    """
    if unit == other:
        return 1.0
    for sizes in _DIMENSIONS:
        if unit in sizes and other in sizes:
            return sizes[unit] / sizes[other]
    return None


MAX_MARKS = 64


@dataclass(frozen=True, slots=True)
class Point:
    """A number of a rank; of the first that is nan or inf also how many there are."""

    rank: int
    x: float
    value: float
    count: int = 0


@dataclass
class Told:
    """What one node has told of a curve.

    Attributes:
        x: of what the numbers are against.
    """

    name: str
    unit: str
    x: str
    width: float = 0.0
    line: Buckets = field(default_factory=dict)
    band: dict[float, Band] = field(default_factory=dict)
    count: int = 0
    last: list[Point] = field(default_factory=list)
    odd: list[Point] = field(default_factory=list)
    odd_ranks: int = 0

    def scaled(self, by: float) -> Told:
        """Return it with all numbers multiplied."""
        if by == 1.0:
            return self
        line = {
            key: Bucket(
                one.x_low, one.low * by, one.x_high, one.high * by, one.x_last, one.last * by, one.count, one.marks
            )
            for key, one in self.line.items()
        }
        band = {key: Band(one.low * by, one.high * by, one.differs, one.marks) for key, one in self.band.items()}
        last = [Point(one.rank, one.x, one.value * by, one.count) for one in self.last]
        return Told(
            self.name, self.unit, self.x, self.width, line, band, self.count, last, list(self.odd), self.odd_ranks
        )


@dataclass(frozen=True)
class Picture:
    """A curve to draw.

    Attributes:
        x: what stands below it.
        xs, ys: the line of the first rank.
        band: x, least and greatest, where ranks differ; None between parts that are not beside each other.
        marks: where there is nan or inf, at which x.
        first: of the first rank, the last number. least, greatest: of all ranks.
        odd: the first ranks with nan or inf. left_out: how many numbers are against something else.
    """

    name: str
    unit: str
    x: str
    xs: Sequence[float]
    ys: Sequence[float]
    band: Sequence[tuple[float, float, float] | None]
    marks: Sequence[tuple[float, str]]
    first: Point | None
    least: Point | None
    greatest: Point | None
    count: int
    odd: Sequence[Point] = ()
    odd_ranks: int = 0
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw yet."""
        return not self.xs and not self.band and not self.marks


def pictures(told: Iterable[Told], names: Sequence[str]) -> list[Picture]:
    """Return what to draw, in the order of names. Numbers whose units can not be compared with the most frequent unit
    of their name are curves of their own."""
    told, found = list(told), []
    for name in names:
        left = [one for one in told if one.name == name]
        is_first = True
        while left:
            unit = _most(left, lambda one: one.unit)
            alike = [(one, by) for one in left if (by := factor(one.unit, unit)) is not None]
            left = [one for one in left if factor(one.unit, unit) is None]
            label = name if is_first else f"{name} ({unit or 'no unit'})"
            found.append(_picture(label, unit, [one.scaled(by) for one, by in alike]))
            is_first = False
    return found


def _most(told: Sequence[Told], what: Callable[[Told], str]) -> str:
    counts: dict[str, int] = {}
    for one in told:
        counts[what(one)] = counts.get(what(one), 0) + one.count
    return max(counts, key=lambda each: counts[each])


def _picture(name: str, unit: str, told: Sequence[Told]) -> Picture:
    x = _most(told, lambda one: one.x)
    drawn = [one for one in told if one.x == x]
    lines = [one for one in drawn if one.line]
    xs, ys = line_of(lines[0].line) if lines else ([], [])
    width, bands = merged_bands([(one.width, one.band) for one in drawn])
    last = [point for one in drawn for point in one.last]
    finite = [point for point in last if math.isfinite(point.value)]
    odd = sorted((point for one in drawn for point in one.odd), key=lambda point: point.rank)
    return Picture(
        name,
        unit,
        x,
        xs,
        ys,
        _differing(width, bands),
        _marks(width, bands),
        min(last, key=lambda point: point.rank, default=None),
        min(finite, key=lambda point: point.value, default=None),
        max(finite, key=lambda point: point.value, default=None),
        sum(one.count for one in drawn),
        odd,
        sum(one.odd_ranks for one in drawn),
        sum(one.count for one in told if one.x != x),
    )


def _differing(width: float, bands: dict[float, Band]) -> list[tuple[float, float, float] | None]:
    found: list[tuple[float, float, float] | None] = []
    for key in sorted(bands):
        band = bands[key]
        if band.differs and band.low == band.low:
            found.append((key * width + width / 2 if width else key, band.low, band.high))
        elif found and found[-1] is not None:
            found.append(None)
    return found


def _marks(width: float, bands: dict[float, Band]) -> list[tuple[float, str]]:
    marked = [(key, bands[key].marks) for key in sorted(bands) if bands[key].marks]
    step = -(-len(marked) // MAX_MARKS) or 1  # enough to be seen
    return [
        (key * width if width else key, "nan" if marks & NAN else "inf" if marks & INF else "-inf")
        for key, marks in marked[::step]
    ]
