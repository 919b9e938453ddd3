"""The questions of a comparison, in order. Only ranks that differ are asked for more than one digest."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import sub
from typing import Any

from monarch_nb.client.comparing.asking import Asking
from monarch_nb.client.comparing.comparison import Compared, Difference, Version, compared
from monarch_nb.client.comparing.report import MOST_ROWS, MOST_VERSIONS, DiffReport
from monarch_nb.errors import MonarchNbError
from monarch_nb.worker.comparing.leaves import Leaf

MOST_BLOCKS = 4
"""The elements of so many blocks are compared; where more differ the greatest difference is at least what is told."""


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
    """Return differences of tensors, with how far they are apart."""
    asked: dict[int, list[str]] = {}
    for difference in differences:
        for version in difference.versions[:MOST_VERSIONS]:
            asked.setdefault(version.ranks[0], []).append(difference.path)
    blocks = {rank: asking.ask([rank], f"look_at({paths!r})")[rank] for rank, paths in asked.items()}
    return [_measured(asking, difference, blocks) for difference in differences]


def _measured(asking: Asking, difference: Difference, blocks: dict[int, dict[str, Any]]) -> Difference:
    most, path = difference.versions[0], difference.path

    def seen(version: Version) -> Any:
        return blocks.get(version.ranks[0], {}).get(path)

    def better(version: Version) -> Version:
        own, reference = seen(version), seen(most)
        if own is None:
            return version
        nan, inf = own[3]
        version = replace(version, nan=nan, inf=inf)
        if version.ranks == most.ranks or version.facts != most.facts or reference is None or own[2] != reference[2]:
            return version
        return replace(version, distance=_distance(asking, path, most.ranks[0], version.ranks[0], reference, own))

    return difference.with_versions(map(better, difference.versions))


def _distance(asking: Asking, path: str, of_most: int, of_other: int, most: Any, other: Any) -> str:
    """Return how far two versions of a tensor are apart, from the elements of blocks whose digests differ."""
    numbers = [number for number, pair in enumerate(zip(most[0], other[0], strict=True)) if pair[0] != pair[1]]
    chosen = numbers[:MOST_BLOCKS]
    told = asking.ask([of_most, of_other], f"elements({[(path, number) for number in chosen]!r})")
    greatest, place = 0.0, -1
    pairs = [(_array(one), _array(two)) for one, two in zip(told[of_most], told[of_other], strict=True)]
    for number, (first, second) in zip(chosen, pairs, strict=True):
        apart = [size if size - size == 0 else 0.0 for size in map(abs, map(sub, first, second))]
        if (most_here := max(apart)) > greatest:
            per_element = -(-len(first) // most[1])  # two numbers of a complex element
            greatest, place = most_here, number * most[1] + apart.index(most_here) // per_element
    if place < 0:
        return _without_distance(pairs)
    at_least = "at least " if len(numbers) > len(chosen) else ""
    return f"greatest |difference| {at_least}{greatest:.3g} at {_index(place, most[2])}"


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
