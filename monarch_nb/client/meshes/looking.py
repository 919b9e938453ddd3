"""What there is to say of ranks while they run: their states, their stacks, and the names that they know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.infos import RankInfo, StackReport, infos_of_node
from monarch_nb.errors import NodeUnreachable, PoolError, RankUnresponsive
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.jobs import trouble, what_became

NAMES_TIMEOUT_S = 1.0
"""So long a rank is asked what it knows of a name: somebody types."""


def check_nodes(core: MeshCore, ranks: Sequence[int], pool: str) -> None:
    """Raise NodeUnreachable unless all nodes answer; PoolError when the jobs that they came from have ended."""
    with telling_of_jobs(pool):
        call(core.check_nodes(ranks))


@contextmanager
def telling_of_jobs(pool: str) -> Iterator[None]:
    """Have whoever finds that a node does not answer learn what has become of the job that it came from.

    Raises:
        NodeUnreachable: the same, with what the engine says. PoolError: all jobs of the pool have ended.
    """
    try:
        yield
    except NodeUnreachable as error:
        said, is_over = what_became(pool)
        if is_over:
            raise PoolError(said) from None
        if not said:
            raise
        raise NodeUnreachable(f"{error}; {said}", error.node) from None


def statuses(core: MeshCore, ranks: Sequence[int], pool: str) -> list[RankInfo]:
    """Return what allocators know of ranks, and what an engine says of a job whose nodes do not answer; when none does,
    as `telling_of_jobs`."""
    with telling_of_jobs(pool):
        told = call(core.status(memory=True))
    infos = {info.rank: info for connection, mesh in told for info in infos_of_node(connection.name, mesh)}
    said = "" if infos.keys() >= set(ranks) else trouble(pool)
    return [infos.get(rank) or _unreachable(core, rank, said) for rank in ranks]


def _unreachable(core: MeshCore, rank: int, said: str) -> RankInfo:
    node = core.connection_of(rank)
    return RankInfo(rank, node.name, 0, "unreachable", absence="; ".join(filter(None, (node.absence, said))))


def stacks(core: MeshCore, ranks: Sequence[int], pool: str) -> StackReport:
    """Return ranks' Python stacks, or why there are none; equal ones together."""
    replies = call(core.control(ranks, stack=True))
    silent = {rank: _why_silent(core, rank) for rank in ranks if rank not in replies}
    said, is_over = what_became(pool) if any(silent.values()) else ("", False)
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        away = silent.get(rank, "")
        why = said if is_over else "; ".join(filter(None, (away, said)))
        told = replies[rank].stack if rank in replies else why if away else ""
        groups.setdefault(told, []).append(rank)
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
