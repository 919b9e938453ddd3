"""What there is to say of ranks while they run: their states, their stacks, the names that they know, and why their
nodes do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo, StackReport, infos_of_node
from monarch_nb.client.pools.facts.missing import raise_if_released
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.client.runs.run import Run
from monarch_nb.config import patience
from monarch_nb.errors import NodeUnreachable, PoolError, RankUnresponsive
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.jobs import trouble, what_became

NAMES_TIMEOUT_S = patience(1.0)
"""So long a rank is asked what it knows of a name: somebody types."""


def check_nodes(core: MeshCore, ranks: Sequence[int], pool: str) -> None:
    """Raise NodeUnreachable unless all nodes answer, or as `telling_why`. A local pool heals itself first."""
    pool_object(pool).heal(core.healed.append)
    with telling_why(core, pool):
        call(core.check_nodes(ranks))


@contextmanager
def telling_why(core: MeshRanks, pool: str) -> Iterator[None]:
    """Have whoever finds that a node does not answer learn that the reservation was released, or what has become of the
    job that the node came from.

    Raises:
        NodeUnreachable: the same, with what the engine says. PoolError: all jobs of the pool have ended.
        ReservationReleased: a person has released it.
    """
    try:
        yield
    except NodeUnreachable as error:
        raise_if_released(pool_object(pool).end_of(core.reservation_id))
        said, is_over = what_became(pool)
        if is_over:
            raise PoolError(said) from None
        if not said:
            raise
        raise NodeUnreachable(f"{error}; {said}", error.node) from None


def restart(core: MeshCore, ranks: Sequence[int], pool: str) -> None:
    """Replace ranks by fresh ones. See `Mesh.restart`; raises as `check_nodes`."""
    with telling_why(core, pool):
        call(core.restart(ranks))


def statuses(core: MeshCore, ranks: Sequence[int], pool: str) -> list[RankInfo]:
    """Return what allocators know of ranks, and what an engine says of a job whose nodes do not answer; when none does,
    as `telling_why`."""
    with telling_why(core, pool):
        told = call(core.status(memory=True))
    infos = {info.rank: info for connection, mesh in told for info in infos_of_node(connection.name, mesh)}
    said = "" if infos.keys() >= set(ranks) else trouble(pool)
    return [infos.get(rank) or _unreachable(core, rank, said) for rank in ranks]


def _unreachable(core: MeshCore, rank: int, said: str) -> RankInfo:
    """Return what this process knows of a rank: also what it ran, if that was sent from here or is followed here."""
    node = core.connection_of(rank)
    absence = "; ".join(filter(None, (node.absence, said)))
    run = next((run for run in core.going_on() if rank in run.left()), None)
    if run is None:
        return RankInfo(rank, node.name, 0, "unreachable", absence=absence)
    since_s = time.time() - run.submitted_at
    return RankInfo(rank, node.name, 0, "unreachable", run_id=run.id, running_s=since_s, absence=absence)


def known(core: MeshCore, ranks: Sequence[int]) -> tuple[list[RankInfo], list[RunInfo]]:
    """Return what this process knows of ranks and runs while no node answers; no ranks when one does. Asks nobody."""
    if any(core.is_node_up(node) for node in core.connections):
        return [], []
    return [_unreachable(core, rank, "") for rank in ranks], [run_info(run) for run in core.going_on()]


def run_info(run: Run) -> RunInfo:
    """Return what this process knows of a run."""
    left, since_s = tuple(run.left()), time.time() - run.submitted_at
    return RunInfo(
        *(run.id, run.number, run.title, run.ranks, tuple(rank for rank in run.ranks if rank not in left), False),
        *(run.submitted_at, run.cell_number),
        running=left if run.number else (),
        running_s=since_s if run.number else 0.0,
        notebook=run.notebook,
        is_script=run.is_script,
        is_calls=run.is_calls,
        owner=run.owner,
    )


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
