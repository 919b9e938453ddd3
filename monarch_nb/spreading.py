"""What a mesh is over more nodes or fewer, as clients ask for it and as nodes write it down."""

from __future__ import annotations

from monarch_nb.proto import allocator_pb2 as pb


def spread(spec: pb.SpawnRequest, nodes: int) -> None:
    """Let a node's part of a mesh be one of so many."""
    spec.world_size = nodes * spec.ranks
    for axis in spec.extent:
        if axis.name == "hosts":
            axis.size = nodes
