"""Which nodes are below which."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from monarch_nb.branches.layout import nodes_of, ranks_of_run, ranks_on, split
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb


def nodes(ranks: Iterable[int]) -> list[pb.BranchNode]:
    return [pb.BranchNode(node_rank=rank) for rank in ranks]


@pytest.mark.parametrize(("count", "fan_out"), [(1, 8), (7, 8), (8, 8), (1023, 8), (6, 2), (5, 1)])
def test_every_node_is_below_exactly_one(count: int, fan_out: int) -> None:
    parts = split(nodes(range(1, count + 1)), fan_out)
    assert len(parts) == min(count, fan_out)
    found = [node.node_rank for head, rest in parts for node in (head, *rest)]
    assert sorted(found) == list(range(1, count + 1))
    sizes = {len(rest) for _, rest in parts}
    assert max(sizes) - min(sizes) <= 1


def test_nodes_of_a_part_are_next_to_each_other() -> None:
    (_, left), (head, right) = split(nodes(range(1, 12)), 2)
    assert [node.node_rank for node in left] == [2, 3, 4, 5]
    assert [head.node_rank, *(node.node_rank for node in right)] == [6, 7, 8, 9, 10, 11]


def test_ranks_are_on_nodes() -> None:
    some, there = Ranges.of([0, 3, 4, 5, 12]), Ranges.of(range(4, 8))
    assert list(nodes_of(some, 4)) == [0, 1, 3]
    assert list(ranks_on(Ranges.of([1, 3]), 2)) == [2, 3, 6, 7]
    assert (ranks_of_run([], there), list(ranks_of_run([1, 5], there))) == (there, [5]), "that names none is on all"
