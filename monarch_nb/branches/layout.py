"""Which nodes are below which. Pure."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from monarch_nb.proto import allocator_pb2 as pb

Part = tuple[pb.BranchNode, list[pb.BranchNode]]


def ranks_by_node(ranks: Iterable[int], ranks_per_node: int) -> Mapping[int, tuple[int, ...]]:
    """Return which of these ranks each node has, by node rank; nodes that have none are left out."""
    return _ranks_by_node(tuple(ranks), ranks_per_node)


@functools.lru_cache(maxsize=16)  # run after run is on the same ranks, thousands perhaps
def _ranks_by_node(ranks: tuple[int, ...], ranks_per_node: int) -> Mapping[int, tuple[int, ...]]:
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // ranks_per_node, []).append(rank)
    return MappingProxyType({node: tuple(on_node) for node, on_node in by_node.items()})


def split(nodes: Sequence[pb.BranchNode], fan_out: int) -> list[Part]:
    """Cut the nodes below one into `fan_out` parts of the same size: (head, those that are below the head)."""
    parts = [list(nodes[start::fan_out]) for start in range(fan_out)]
    return [(part[0], part[1:]) for part in parts if part]
