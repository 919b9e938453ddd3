"""The questions of a comparison, in order. Only ranks that differ are asked for more than one digest."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import sub
from typing import Any, NamedTuple

from monarch_nb.client.comparing.asking import Asking
from monarch_nb.client.comparing.comparison import Compared, Difference, Version, compared
from monarch_nb.client.comparing.report import MOST_ROWS, MOST_VERSIONS, DiffReport
from monarch_nb.errors import MonarchNbError
from monarch_nb.worker.comparing.answers import History, Looked
from monarch_nb.worker.comparing.leaves import Leaf

MOST_BLOCKS = 4
"""The elements of so many blocks are compared; where more differ the greatest difference is at least what is told."""

MOST_ELEMENTS = 1 << 22
"""An answer has so many elements, of 8 bytes each, unless one tensor has more."""


def compare(
    asking: Asking, groups: Sequence[tuple[int, ...]], expression: str, begin: str, of_digests: str = ""
) -> DiffReport:
    """Return how ranks differ.

    Args:
        asking: the ranks.
        groups: ranks that are meant to be equal.
        expression: what is compared, for people.
        begin: the first question.
        of_digests: what the values are, if ranks tell digests of them.
    """
    everybody = [rank for group in groups for rank in group]
    first = asking.ask(everybody, begin)
    try:
        found = [_compared(asking, group, first) for group in groups]
        return DiffReport(expression, tuple(found), max(left_out for _, _, left_out in first.values()), of_digests)
    finally:
        with contextlib.suppress(MonarchNbError):  # a rank that is gone keeps nothing
            asking.ask(everybody, "end()")


def _compared(asking: Asking, group: tuple[int, ...], first: dict[int, Any]) -> Compared:
    alike: dict[str, list[int]] = {}
    for rank in group:
        alike.setdefault(first[rank][0], []).append(rank)
    told = asking.ask([ranks[0] for ranks in alike.values()], "leaves()")
    leaves = {tuple(ranks): [Leaf(*each) for each in told[ranks[0]]] for ranks in alike.values()}
    result = compared(leaves)
    shown = [each for each in result.differences if each.is_tensor][:MOST_ROWS]
    more = {id(each): better for each, better in zip(shown, _looked_at(asking, shown), strict=True)}
    return replace(result, differences=tuple(more.get(id(each), each) for each in result.differences))


def _looked_at(asking: Asking, differences: Sequence[Difference]) -> list[Difference]:
    """Return differences of tensors, with how far they are apart, and since when."""
    asked: dict[int, list[str]] = {}
    for difference in differences:
        for version in difference.versions[:MOST_VERSIONS]:
            asked.setdefault(version.ranks[0], []).append(difference.path)
    seen = asking.ask_each({rank: f"look_at({paths!r})" for rank, paths in asked.items()})
    pairs = [pair for difference in differences for pair in _pairs(difference, seen)]
    distances = {(pair.path, pair.other): _distance(pair, *told) for pair, told in _elements(asking, pairs)}
    return [_measured(difference, seen, distances) for difference in differences]


def _measured(
    difference: Difference, seen: Mapping[int, Mapping[str, Looked]], distances: Mapping[tuple[str, int], str]
) -> Difference:
    reference = seen.get(difference.versions[0].ranks[0], {}).get(difference.path)

    def better(version: Version) -> Version:
        own = seen.get(version.ranks[0], {}).get(difference.path)
        if own is None:
            return version
        since = _since(reference.history, own.history) if reference is not None and own is not reference else ""
        distance = distances.get((difference.path, version.ranks[0]), "")
        return replace(version, distance=distance, nan=own.nan, inf=own.inf, since=since)

    return difference.with_versions(map(better, difference.versions))


class _Pair(NamedTuple):
    """Two versions of a tensor whose elements are to be compared.

    Attributes:
        path: the name.
        most, other: a rank that has the most common version, and one that has another.
        differing: the numbers of the blocks whose digests differ.
        block_elements, shape: of the tensor.
    """

    path: str
    most: int
    other: int
    differing: list[int]
    block_elements: int
    shape: list[int]

    @property
    def wanted(self) -> list[tuple[str, int]]:
        """The blocks of which the elements are compared."""
        return [(self.path, number) for number in self.differing[:MOST_BLOCKS]]

    @property
    def elements(self) -> int:
        """How many elements these blocks have at most."""
        return len(self.wanted) * min(self.block_elements, math.prod(self.shape))


def _pairs(difference: Difference, seen: Mapping[int, Mapping[str, Looked]]) -> Iterator[_Pair]:
    path, most = difference.path, difference.versions[0]
    reference = seen.get(most.ranks[0], {}).get(path)
    for version in difference.versions[1:]:
        own = seen.get(version.ranks[0], {}).get(path)
        if own is None or reference is None or version.facts != most.facts or own.shape != reference.shape:
            continue
        both = enumerate(zip(reference.blocks, own.blocks, strict=True))
        differing = [number for number, (one, other) in both if one != other]
        yield _Pair(path, most.ranks[0], version.ranks[0], differing, own.block_elements, own.shape)


def _elements(asking: Asking, pairs: Iterable[_Pair]) -> Iterator[tuple[_Pair, tuple[Any, Any]]]:
    """Yield pairs, each with the elements of the blocks of both versions. Small tensors are asked for together."""
    for batch in _batches(pairs):
        wanted: dict[int, list[tuple[str, int]]] = {}
        for pair in batch:
            for rank in (pair.most, pair.other):
                known = wanted.setdefault(rank, [])
                known.extend(block for block in pair.wanted if block not in known)
        told = asking.ask_each({rank: f"elements({blocks!r})" for rank, blocks in wanted.items()})
        found = {rank: dict(zip(blocks, told[rank], strict=True)) for rank, blocks in wanted.items()}
        for pair in batch:
            most, other = ([found[rank][block] for block in pair.wanted] for rank in (pair.most, pair.other))
            yield pair, (most, other)


def _batches(pairs: Iterable[_Pair]) -> Iterator[list[_Pair]]:
    """Yield pairs in lists of which the elements fit one answer."""
    batch: list[_Pair] = []
    for pair in pairs:
        if batch and sum(each.elements for each in batch) + pair.elements > MOST_ELEMENTS:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def _distance(pair: _Pair, most: Sequence[Any], other: Sequence[Any]) -> str:
    """Return how far two versions of a tensor are apart, from the elements of blocks whose digests differ."""
    greatest, place = 0.0, -1
    arrays = [(_array(one), _array(two)) for one, two in zip(most, other, strict=True)]
    for (_, number), (first, second) in zip(pair.wanted, arrays, strict=True):
        apart = [size if size - size == 0 else 0.0 for size in map(abs, map(sub, first, second))]
        if (most_here := max(apart)) > greatest:
            per_element = -(-len(first) // pair.block_elements)  # two numbers of a complex element
            greatest, place = most_here, number * pair.block_elements + apart.index(most_here) // per_element
    if place < 0:
        return _without_distance(arrays)
    at_least = "at least " if len(pair.differing) > MOST_BLOCKS else ""
    return f"greatest |difference| {at_least}{greatest:.3g} at {_index(place, pair.shape)}"


def _since(most: History, other: History) -> str:
    """Return since when two ranks have different values of a parameter: "step 3 of run 12"; empty when that is not
    recorded."""
    if most is None or other is None or most[:2] != other[:2]:
        return ""
    both = zip(most[2].items(), other[2].items(), strict=False)
    step = next((step for (step, one), (same, two) in both if step == same and one != two), None)
    return (
        "" if step is None else f"step {step} of run {most[0]}" if step else f"before the first step of run {most[0]}"
    )


def _without_distance(pairs: Iterable[tuple[array[Any], array[Any]]]) -> str:
    apart = any(a != b and (a == a or b == b) for first, second in pairs for a, b in zip(first, second, strict=True))
    return "only where one is nan or inf" if apart else "only in the sign of zeros or the bits of nan"


def _array(told: tuple[str, bytes]) -> array[Any]:
    found: array[Any] = array(told[0])
    found.frombytes(told[1])
    return found


def _index(place: int, shape: Iterable[int]) -> list[int]:
    """Return the index of an element from its place in memory."""
    index: list[int] = []
    for size in reversed(list(shape)):
        place, within = divmod(place, size)
        index.insert(0, within)
    return index
