"""Numbers of many ranks in a sentence: least and greatest, median, and who is not like the others. Pure.

Which are far from the others is decided as for lines (`lines.outliers`), when no more than a quarter of them are: a
slow host of four is worth a word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.lines.outliers import outside

FAR_SHARE = 4
"""Far is at most one in so many: else these are another population."""
_SMALLEST_PART = 1e-6
"""A difference that is no larger, compared with the median, is none."""
_NAMED_RANKS, _WHOLE_DIGITS, _MIN_DIGITS, _MAX_DIGITS = 8, 24, 5, 17


@dataclass(frozen=True, slots=True)
class Number:
    """A rank's number: for order, and in the rank's own digits."""

    value: int | float
    text: str

    @staticmethod
    def read(text: str) -> Number:
        """Return what a rank has written.

        Raises:
            ValueError: it is no number.
        """
        try:
            return Number(int(text), text)
        except ValueError:
            return Number(float(text), text)

    @property
    def is_finite(self) -> bool:
        return isinstance(self.value, int) or math.isfinite(self.value)


@dataclass(frozen=True, slots=True)
class Spread:
    """How the numbers of ranks are spread.

    Attributes:
        numbers: all of them, by rank.
        finite: the ranks of those that are numbers, from least to greatest.
        odd: the ranks of the others, by what stands there: "nan", "inf" or "-inf".
        far: the ranks that are far from the others, the farthest first.
        low, high: the least and the greatest that are not far.
        median: of those that are numbers.
        digits: as many as tell the numbers from each other.
    """

    numbers: Mapping[int, Number]
    finite: tuple[int, ...]
    odd: Mapping[str, tuple[int, ...]]
    far: tuple[int, ...]
    low: int | float = 0
    high: int | float = 0
    median: int | float = 0
    digits: int = _MIN_DIGITS

    @staticmethod
    def of(numbers: Mapping[int, Number]) -> Spread:
        """Return the spread of the numbers of ranks.

        Example:
            >>> spread = Spread.of({rank: Number.read(text) for rank, text in enumerate(["2.5", "nan", "1", "4"])})
            >>> spread.sentence()
            '3 numbers from 1 (rank 2) to 4 (rank 3), median 2.5 · nan on rank 1'
        """
        finite = sorted((rank for rank in numbers if numbers[rank].is_finite), key=lambda rank: numbers[rank].value)
        odd: dict[str, list[int]] = {}
        for rank, number in numbers.items():
            if not number.is_finite:
                odd.setdefault(str(number.value), []).append(rank)
        told: dict[str, tuple[int, ...]] = {kind: tuple(odd[kind]) for kind in ("nan", "inf", "-inf") if kind in odd}
        if not finite:
            return Spread(numbers, (), told, ())
        values = [numbers[rank].value for rank in finite]
        middle = _median(values)
        near, far = _far(finite, values, middle)
        low, high = numbers[near[0]].value, numbers[near[-1]].value
        return Spread(numbers, tuple(finite), told, far, low, high, middle, _digits(low, high))

    @property
    def is_equal(self) -> bool:
        """Whether all that are numbers are the same."""
        return not self.finite or self._least.value == self._greatest.value

    @property
    def _least(self) -> Number:
        return self.numbers[self.finite[0]]

    @property
    def _greatest(self) -> Number:
        return self.numbers[self.finite[-1]]

    def sentence(self, *, counts: bool = True) -> str:
        """Return what there is to say of it; without `counts` not how many there are, which is said elsewhere."""
        return " · ".join([self._range(counts), *self.exceptions()])

    def _range(self, counts: bool) -> str:
        count = len(self.finite)
        if self.is_equal:
            text = self.text_of(self._least) if count else "no number"
            return f"{text} on {name_ranks(self.finite)}" if count and self.odd else text
        many = f"{count:,} numbers from " if counts or self.odd else ""
        return f"{many}{self.ends(' to ')}, median {self.text_of(_number(self.median))}"

    def ends(self, between: str) -> str:
        """Return the least and the greatest, with their ranks."""
        return between.join(
            f"{self.text_of(end)} ({some_ranks(self._with_value(end))})" for end in (self._least, self._greatest)
        )

    def exceptions(self) -> list[str]:
        """Return what is said of ranks that are not like the others."""
        told = [f"{kind} on {some_ranks(ranks)}" for kind, ranks in self.odd.items()]
        return [*told, *([f"far from the others: {some_ranks(self.far)}"] if self.far else [])]

    def text_of(self, number: Number) -> str:
        """Return a number in as many digits as tell the numbers from each other."""
        return _shown(number, self.digits)

    def _with_value(self, number: Number) -> list[int]:
        return [rank for rank in self.finite if self.numbers[rank].value == number.value]


def _median(values: Sequence[int | float]) -> int | float:
    low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
    if low == high:
        return low
    try:
        if isinstance(low, int) and isinstance(high, int) and not (low + high) % 2:
            return (low + high) // 2
        middle = (low + high) / 2
        middle = low / 2 + high / 2 if math.isinf(middle) else middle
    except OverflowError:  # an integer that no float can hold
        return low
    return min(max(low, middle), high)


def _far(ranks: list[int], values: Sequence[int | float], middle: int | float) -> tuple[list[int], tuple[int, ...]]:
    """Return the ranks that are not far from the others, and those that are."""
    try:
        places = outside(values, len(ranks) // FAR_SHARE, share=_SMALLEST_PART)
        distances = {ranks[place]: abs(values[place] - middle) for place in places}
    except OverflowError:
        return ranks, ()
    return [rank for rank in ranks if rank not in distances], tuple(
        sorted(distances, key=lambda rank: (-distances[rank], rank))
    )


def _digits(low: int | float, high: int | float) -> int:
    try:
        width = float(high) - float(low)
        size = max(abs(float(low)), abs(float(high)))
        return min(_MAX_DIGITS, max(_MIN_DIGITS, math.ceil(math.log10(size / width)) + 3)) if width else _MIN_DIGITS
    except (OverflowError, ValueError):  # larger than a float can be
        return _MIN_DIGITS


def _number(value: int | float) -> Number:
    return Number(value, repr(value))


def _shown(number: Number, digits: int) -> str:
    if isinstance(number.value, int):
        if len(number.text) <= _WHOLE_DIGITS:
            return number.text
        return f"{Decimal(number.value):.{min(digits, _MAX_DIGITS) - 1}e}"
    if len(number.text) <= digits + 2:
        return number.text
    return f"{number.value:.{digits}g}"


def some_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks for a sentence; of many apart from each other the first and how many more there are."""
    chosen = list(ranks)
    if len(format_ranks(chosen).split(",")) <= _NAMED_RANKS:
        return name_ranks(chosen)
    return f"{name_ranks(chosen[:_NAMED_RANKS])} and {len(chosen) - _NAMED_RANKS:,} more"
