"""Which nodes are below which. Pure."""

from collections.abc import Sequence

from monarch_nb.proto import allocator_pb2 as pb

Part = tuple[pb.BranchNode, list[pb.BranchNode]]


def split(nodes: Sequence[pb.BranchNode], fan_out: int) -> list[Part]:
    """Cut the nodes below one into `fan_out` parts of the same size: (head, those that are below the head)."""
    parts = [list(nodes[start::fan_out]) for start in range(fan_out)]
    return [(part[0], part[1:]) for part in parts if part]
