"""Sets of numbers, ranks or nodes, that are mostly next to each other: thousands of them cost as much as one."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Iterator


class Ranges:
    """A set of numbers that does not change.

    Args:
        bounds: the first number of each range and the one after its last, in order, with gaps between ranges.

    Example:
        >>> list(Ranges((0, 3, 7, 8)))
        [0, 1, 2, 7]
    """

    __slots__ = ("bounds",)

    def __init__(self, bounds: Iterable[int] = ()) -> None:
        self.bounds = tuple(bounds)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """Return the set of these numbers."""
        if isinstance(numbers, Ranges):
            return numbers
        if isinstance(numbers, range) and numbers.step == 1:
            return cls(numbers and (numbers.start, numbers.stop))
        if isinstance(numbers, tuple):
            return _of_tuple(numbers)
        return cls.joined((number, number + 1) for number in numbers)

    @classmethod
    def joined(cls, pairs: Iterable[tuple[int, int]]) -> Ranges:
        """Return the set of all numbers in these ranges, in any order: (first, one after the last)."""
        bounds: list[int] = []
        for first, end in sorted(pairs):
            if end <= first:
                continue
            if not bounds or first > bounds[-1]:
                bounds += (first, end)
            elif end > bounds[-1]:
                bounds[-1] = end
        return cls(bounds)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges: (first, one after the last)."""
        return zip(self.bounds[::2], self.bounds[1::2], strict=True)

    @property
    def first(self) -> int:
        """The lowest number."""
        return self.bounds[0]

    def __repr__(self) -> str:
        return f"Ranges({self.bounds})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.bounds == other.bounds

    def __hash__(self) -> int:
        return hash(self.bounds)

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __len__(self) -> int:
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(itertools.starmap(range, self.pairs()))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and bisect.bisect_right(self.bounds, number) % 2 == 1

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.joined((*self.pairs(), *other.pairs())) if self.bounds != other.bounds else self

    def __and__(self, other: Ranges) -> Ranges:
        return self if self.bounds == other.bounds else Ranges(_in_both(self.bounds, other.bounds))

    def __sub__(self, other: Ranges) -> Ranges:
        return Ranges() if self.bounds == other.bounds else Ranges(_in_both(self.bounds, (0, *other.bounds, _TOP)))

    def __le__(self, other: Ranges) -> bool:
        return not self - other


_TOP = 1 << 62
"""More than any number."""


def _in_both(some: tuple[int, ...], others: tuple[int, ...]) -> list[int]:
    """Return the bounds of what is in ranges of both."""
    bounds: list[int] = []
    at = there = 0
    while at < len(some) and there < len(others):
        end, other_end = some[at + 1], others[there + 1]
        first = max(some[at], others[there])
        if first < end and first < other_end:
            bounds += (first, min(end, other_end))
        if end < other_end:
            at += 2
        else:
            there += 2
    return bounds


@functools.lru_cache(maxsize=16)  # run after run is on the same ranks
def _of_tuple(numbers: tuple[int, ...]) -> Ranges:
    return Ranges.joined((number, number + 1) for number in numbers)
