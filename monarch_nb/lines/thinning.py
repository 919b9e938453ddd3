"""Many points of many ranks become few: buckets of x keep the least, the greatest and the last number of each rank, so
spikes stay; nan and inf stay as marks.

All buckets of a curve are equally wide: 0 (each x is its own), or a power of two, so that curves of different nodes fit
together. Nothing depends on the order in which points come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

BUCKETS = 512
"""So many buckets a curve has at most, about."""
NAN, INF, MINUS_INF = 1, 2, 4
"""Marks of a bucket, as bits."""


@dataclass(slots=True)
class Bucket:
    """Points of one rank with about the same x.

    Attributes:
        low, high, last: nan as long as there was no finite number.
        marks: which of nan, inf and -inf there were.
    """

    x_low: float = math.nan
    low: float = math.nan
    x_high: float = math.nan
    high: float = math.nan
    x_last: float = math.nan
    last: float = math.nan
    count: int = 0
    marks: int = 0

    def add(self, x: float, y: float) -> None:
        """Take in a point."""
        if y - y != 0.0:  # nan or inf
            self.marks |= NAN if y != y else INF if y > 0 else MINUS_INF
            if self.count == 0:
                self.x_last = x
            return
        if self.count == 0 or self.low != self.low:
            self.x_low = self.x_high = self.x_last = x
            self.low = self.high = self.last = y
        else:
            if y < self.low:
                self.low, self.x_low = y, x
            elif y > self.high:
                self.high, self.x_high = y, x
            if x >= self.x_last:
                self.last, self.x_last = y, x
        self.count += 1

    def merge(self, other: Bucket) -> None:
        """Take in the points of another one."""
        self.marks |= other.marks
        if other.count == 0:
            if self.count == 0:
                self.x_last = other.x_last
            return
        if self.count == 0:
            self.x_low = self.x_high = self.x_last = other.x_last
            self.low = self.high = self.last = other.last
        if other.low < self.low:
            self.low, self.x_low = other.low, other.x_low
        if other.high > self.high:
            self.high, self.x_high = other.high, other.x_high
        if other.x_last >= self.x_last:
            self.last, self.x_last = other.last, other.x_last
        self.count += other.count

    def points(self) -> list[tuple[float, float]]:
        """Return what there is to draw of it: at most three points, by x."""
        if self.count == 0:
            return []
        return sorted({(self.x_low, self.low), (self.x_high, self.high), (self.x_last, self.last)})


@dataclass(slots=True)
class Band:
    """Where the ranks' numbers with about the same x are.

    Attributes:
        differs: whether ranks have different ones.
    """

    low: float
    high: float
    differs: bool
    marks: int = 0

    def merge(self, other: Band) -> None:
        """Take in those of other ranks."""
        if other.low == other.low:
            differs = self.low == self.low and (other.low, other.high) != (self.low, self.high)
            self.low = min(other.low, self.low) if self.low == self.low else other.low
            self.high = max(other.high, self.high) if self.high == self.high else other.high
            self.differs |= other.differs or differs
        self.marks |= other.marks


Buckets = dict[float, Bucket]
"""By number of the bucket; with a width of 0, by x."""


@dataclass(slots=True)
class Odd:
    """Where a rank has numbers that are none: how many, and where the first one is."""

    text: str
    x: float
    count: int = 1


@dataclass
class Curve:
    """The numbers of one name on some ranks.

    Attributes:
        odd: ranks with nan or inf.
        counts: by rank, how many numbers there were.
        changed: by bucket, at which version it changed last. whole_since: the version at which all did.
    """

    buckets: int = BUCKETS
    width: float = 0.0
    ranks: dict[int, Buckets] = field(default_factory=dict)
    odd: dict[int, Odd] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[float, float]] = field(default_factory=dict)
    changed: dict[float, int] = field(default_factory=dict)
    whole_since: int = 0

    def add(self, rank: int, xs: Iterable[float], ys: Iterable[float], version: int) -> None:
        """Take in points of a rank. Those whose x is none are left out."""
        buckets, width, changed = self.ranks.setdefault(rank, {}), self.width, self.changed
        last = self.last.get(rank, (-math.inf, math.nan))
        count, known, bucket = 0, math.nan, Bucket()
        for x, y in zip(xs, ys, strict=True):
            if x - x != 0.0:
                continue
            count += 1
            key = x // width if width else x
            if key != known:
                found = buckets.get(key)
                if found is None:
                    found = buckets[key] = Bucket()
                known, bucket = key, found
                changed[key] = version
            bucket.add(x, y)
            if x >= last[0]:
                last = x, y
            if y - y != 0.0:
                self._note_odd(rank, x, y)
        self.last[rank] = last
        self.counts[rank] = self.counts.get(rank, 0) + count
        if len(buckets) > 2 * self.buckets:
            self._coarsen(rank, version)

    def _note_odd(self, rank: int, x: float, y: float) -> None:
        if (odd := self.odd.get(rank)) is not None:
            odd.count += 1
        else:
            self.odd[rank] = Odd(str(y), x)

    def _coarsen(self, rank: int, version: int) -> None:
        width = coarser(self.ranks[rank], self.width, self.buckets)
        self.ranks = {each: rekeyed(buckets, self.width, width) for each, buckets in self.ranks.items()}
        self.width, self.changed, self.whole_since = width, {}, version
        for buckets in self.ranks.values():
            self.changed.update(dict.fromkeys(buckets, version))

    def since(self, version: int) -> list[float]:
        """Return which buckets have changed after a version."""
        return [key for key, changed in self.changed.items() if changed > version]

    def band(self, key: float) -> Band:
        """Return where the numbers of all ranks are in a bucket. A rank that is read so far only in part has some of
        them: it does not differ."""
        found = [bucket for buckets in self.ranks.values() if (bucket := buckets.get(key)) is not None]
        fullest = max(found, key=lambda bucket: bucket.count)
        band = Band(fullest.low, fullest.high, differs=False)
        for each in found:
            band.marks |= each.marks
            if each.count:
                band.low, band.high = min(band.low, each.low), max(band.high, each.high)
                band.differs |= each.count == fullest.count and each.last != fullest.last
        band.differs |= (band.low, band.high) != (fullest.low, fullest.high) and fullest.count > 0
        return band


def coarser(keys: Iterable[float], width: float, most: int) -> float:
    """Return a width with which at most so many buckets are left. A few points that are far away change little."""
    xs = sorted(key * width if width else key for key in keys)
    if not width:
        gaps = [after - before for before, after in pairwise(xs) if after > before]
        width = 2.0 ** math.floor(math.log2(min(gaps, default=1.0)))
    while len({x // width for x in xs}) > most:
        width *= 2
    return width


def rekeyed(buckets: Buckets, before: float, after: float) -> Buckets:
    """Return buckets of one width as fewer ones of a greater width."""
    if before == after:
        return buckets
    found: Buckets = {}
    for key, bucket in buckets.items():
        wide = (key * before if before else key) // after
        if (known := found.get(wide)) is None:
            found[wide] = bucket
        else:
            known.merge(bucket)
    return found


def line_of(buckets: Buckets) -> tuple[list[float], list[float]]:
    """Return the points to draw of a rank's buckets, by x."""
    points = [point for key in sorted(buckets) for point in buckets[key].points()]
    return [x for x, _ in points], [y for _, y in points]


def merged_bands(bands: Sequence[tuple[float, dict[float, Band]]]) -> tuple[float, dict[float, Band]]:
    """Put the bands of several nodes together.

    Args:
        bands: of each node the width, and by bucket.
    """
    width = max((width for width, _ in bands), default=0.0)
    found: dict[float, Band] = {}
    for own_width, by_key in bands:
        wide: dict[float, Band] = {}  # of this node alone: its own buckets may differ from each other
        for key, band in by_key.items():
            place = key if own_width == width else (key * own_width if own_width else key) // width
            if (known := wide.get(place)) is None:
                wide[place] = Band(band.low, band.high, band.differs, band.marks)
            else:
                differs = known.differs or band.differs
                known.merge(band)
                known.differs = differs
        for key, band in wide.items():
            if (known := found.get(key)) is None:
                found[key] = band
            else:
                known.merge(band)
    return width, found
