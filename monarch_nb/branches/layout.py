"""Which nodes are below which, and which ranks are on which. Pure."""

import itertools
from collections.abc import Iterable, Sequence

from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb

Part = tuple[pb.BranchNode, list[pb.BranchNode]]


def nodes_of(ranks: Ranges, ranks_per_node: int) -> Ranges:
    """Return the nodes that some of these ranks are on."""
    return Ranges.joined((first // ranks_per_node, -(-end // ranks_per_node)) for first, end in ranks.pairs())


def ranks_on(nodes: Ranges, ranks_per_node: int) -> Ranges:
    """Return all ranks of these nodes."""
    return Ranges(bound * ranks_per_node for bound in nodes.bounds)


def ranks_of_run(ranks: Iterable[int], there: Ranges) -> Ranges:
    """Return which of the ranks `there` a run is on that names its ranks, or none when it is on all of its mesh."""
    return (Ranges.of(ranks) & there) if ranks else there


def earlier_run(earlier: pb.EarlierRuns, node: int) -> int:
    """Return the number of the newest earlier run on a node; 0 when there is none."""
    return earlier.by_node.get(node, earlier.of_others)


def split(nodes: Sequence[pb.BranchNode], fan_out: int) -> list[Part]:
    """Cut the nodes below one, in their order, into `fan_out` parts of the same size: (head, those that are below the
    head). What is said of all nodes of a part is said of one range then."""
    cuts = [len(nodes) * part // fan_out for part in range(fan_out + 1)]
    parts = [list(nodes[start:end]) for start, end in itertools.pairwise(cuts)]
    return [(part[0], part[1:]) for part in parts if part]
