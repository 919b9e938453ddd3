"""Whether nodes reach each other, as their allocators do and as collectives do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2

PROBED_AT_ONCE = 8
"""So many others does each node try: of all of them the next ones in a ring, so that everybody is tried by some."""
WHAT_HELPS = (
    "Gloo and NCCL take any port between nodes: let these pass, or name another interface (allocator --interface)"
)
WHAT_PASSES = (
    "allocators call each other at the addresses that they advertise: let that port pass between nodes, and have each "
    "listen on an address of its network, not on localhost (allocator --listen, --advertise)"
)


class NotConnected(NodeUnreachable):
    """Nodes that do not reach each other.

    Attributes:
        worst: the one that most of what does not work has to do with, of those that others may stand in for; "" for
            none.
    """

    def __init__(self, ways: Sequence[Way], stay: Collection[str] = ()) -> None:
        shown = "\n".join(f"  {way.trouble}" for way in ways[:10])
        more = f"\n  and {len(ways) - 10} ways more" if len(ways) > 10 else ""
        helps = WHAT_PASSES if any(way.unreachable for way in ways) else WHAT_HELPS
        super().__init__(f"these nodes do not reach each other:\n{shown}{more}\n{helps}")
        self.worst = worst_of(ways, stay)


@dataclass(frozen=True)
class Way:
    """From one node to another.

    Attributes:
        start, end: names of the nodes.
        host: address of the other's interface for collectives.
        unreachable: why the other allocator can not be reached; empty when it can.
        refused: why nobody can connect to that interface from there; empty when that works.
        bytes_per_s: how fast content goes; 0.0 when it was not measured.
    """

    start: str
    end: str
    host: str = ""
    unreachable: str = ""
    refused: str = ""
    bytes_per_s: float = 0.0

    @property
    def trouble(self) -> str:
        """What does not work; empty when all does."""
        if self.unreachable:
            return f"{self.start} does not reach {self.end}: {self.unreachable}"
        return f"{self.start} can not connect to {self.end} at {self.host} {self.refused}" if self.refused else ""


async def ways_between(nodes: Sequence[Connection], size_bytes: int = 0) -> list[Way]:
    """Have nodes try each other. On the background loop.

    Args:
        size_bytes: how much each sends to the next, to learn how fast that goes; at 0 they only connect.

    Raises:
        NodeUnreachable: a node does not answer.
    """
    if size_bytes:  # one after the other: together they would share the network
        found = [way for index in range(len(nodes)) for way in await _ways_from(nodes, index, 1, size_bytes)]
        return found if len(nodes) > 1 else []
    reach = min(len(nodes) - 1, PROBED_AT_ONCE)
    answers = await asyncio.gather(*(_ways_from(nodes, index, reach, 0) for index in range(len(nodes))))
    return [way for answer in answers for way in answer]


async def _ways_from(nodes: Sequence[Connection], index: int, reach: int, size_bytes: int) -> list[Way]:
    start = nodes[index]
    ends = [nodes[(index + step) % len(nodes)] for step in range(1, min(reach, len(nodes) - 1) + 1)]
    peers = [files_pb2.Peer(node_id=end.name, address=end.node_address) for end in ends]
    reply: pb.ProbeReply = await start.unary(
        "Probe", pb.ProbeRequest(peers=peers, size_bytes=size_bytes), patience(120.0)
    )
    return [
        Way(start.name, end.name, probe.host, probe.unreachable, probe.refused, probe.bytes_per_s)
        for end, probe in zip(ends, reply.peers, strict=True)
    ]


async def check_ways(nodes: Sequence[Connection], stay: Sequence[Connection] = ()) -> None:
    """Make sure that nodes of a network reach each other, before ranks wait for each other in vain. On the background
    loop.

    Args:
        stay: nodes besides, which no others can stand in for.

    Raises:
        NotConnected: some do not; the message says which, and what helps.
    """
    everyone = [*nodes, *stay]
    if all(node.identity is None for node in everyone):
        return  # all on this machine
    if blocked := [way for way in await ways_between(everyone) if way.trouble]:
        raise NotConnected(blocked, {node.name for node in stay})


def worst_of(blocked: Sequence[Way], stay: Collection[str] = ()) -> str:
    """Return the node that most of what does not work has to do with: of two, the one that can not be reached; "" when
    it has to do only with those that stay. Pure."""
    parts = Counter(name for way in blocked for name in (way.start, way.end) if name not in stay)
    ends = Counter(way.end for way in blocked)
    return max(parts, key=lambda name: (parts[name], ends[name]), default="")


def speed_of(ways: Sequence[Way]) -> float:
    """Return how fast the slowest way is, in bytes a second; 0.0 when none was measured."""
    return min((way.bytes_per_s for way in ways if way.bytes_per_s), default=0.0)
