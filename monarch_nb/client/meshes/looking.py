"""What live ranks say of themselves while they run: their stacks, and the names that they know."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.infos import StackReport
from monarch_nb.errors import RankUnresponsive
from monarch_nb.proto import allocator_pb2 as pb

NAMES_TIMEOUT_S = 1.0
"""So long a rank is asked what it knows of a name: somebody types."""


def stacks(core: MeshCore, ranks: Sequence[int]) -> StackReport:
    """Return ranks' Python stacks; equal ones together."""
    replies = call(core.control(ranks, stack=True))
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        reply = replies.get(rank)
        groups.setdefault(reply.stack if reply else _why_silent(core, rank), []).append(rank)
    return StackReport([(tuple(ranks), stack) for stack, ranks in groups.items()])


def _why_silent(core: MeshCore, rank: int) -> str:
    """Return why a rank said nothing, if that is its node's fault."""
    number = rank // core.ranks_per_node
    node = core.connections.get(number)
    return "" if node is None or core.is_node_up(number) else node.absence


def complete(core: MeshCore, rank: int, code: str, cursor: int) -> tuple[list[str], int]:
    """Return completions of names that are live on a rank, and where in the code the completed word begins.

    Raises:
        RankUnresponsive: it does not answer at once.
    """
    completion = pb.Completion(code=code, cursor=cursor)
    reply = call(core.control([rank], timeout_s=NAMES_TIMEOUT_S, complete=completion)).get(rank)
    if reply is None:
        raise RankUnresponsive(f"rank {rank} does not answer", [rank])
    return list(reply.completions), reply.completion_start


def inspect(core: MeshCore, rank: int, name: str) -> str:
    """Return what a rank knows of a live name; empty when there is none. Raises as `complete`."""
    reply = call(core.control([rank], timeout_s=NAMES_TIMEOUT_S, inspect=name)).get(rank)
    if reply is None:
        raise RankUnresponsive(f"rank {rank} does not answer", [rank])
    return reply.inspection
