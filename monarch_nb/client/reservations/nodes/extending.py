"""Holding nodes for longer: on every node, and where they came as a job."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from monarch_nb.client.connections.asking import all_or_none
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.facts.missing import not_whole
from monarch_nb.client.pools.pool import Pool
from monarch_nb.client.reservations.nodes.further import Ended
from monarch_nb.client.reservations.nodes.without import way_without
from monarch_nb.errors import NodeUnreachable, PoolError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Job
from monarch_nb.times import duration, time_of_day

SOONER_S = 60.0
"""A job that ends so little before its reservation's time is up ends with it."""


def extend(pool: Pool, reservation_id: str, name: str, by_s: float) -> float:
    """Add to a reservation's time limit, and to that of its job; return how many seconds are left now.

    Raises:
        UsageError: it has no time limit, or is in a job that this user can not extend.
        NodeUnreachable: a node does not answer: nothing is changed, for all must agree.
        PoolError: the engine of its job does not answer.
        ReservationNotFound: it was released.
    """
    limit_s, left_s = call(_limit_and_left_s(pool, reservation_id, name))
    jobs.extend(pool.name, by_s, left_s)
    call(_set_limit(pool, reservation_id, name, limit_s + by_s))
    return left_s + by_s


def hold_while_all_last(pool: Pool, held: HeldReservation, ended: Ended | None = None) -> str:
    """Let a reservation end before the first of its jobs does; return what there is to say of that, if it is sooner
    than it was to end, or if that can not be known or done now; and of jobs that could not be ended.

    Args:
        ended: jobs that bring no nodes to it any more: what they cut from its time it gets back first.
    """
    ended = ended or Ended()
    try:
        said = _held_while_all_last(pool, held, ended.jobs)
    except (PoolError, NodeUnreachable) as error:
        said = f"how long {held.facts.name} is held was not changed, although its jobs may end sooner: {error}"
    return "\n".join(filter(None, [*ended.failures, said]))


def _held_while_all_last(pool: Pool, held: HeldReservation, ended: Sequence[Job]) -> str:
    name = held.facts.name
    bringing, cut_s = _jobs_of(pool, held)
    if cut_s := cut_s + sum(job.cuts_s for job in ended):
        limit_s = 0.0 if math.isinf(cut_s) else held.facts.time_s + cut_s
        call(_set_limit(pool, held.reservation_id, name, limit_s))
        held = call(pool.held(held.reservation_id, name))
    if (first := jobs.ends_first(bringing)) is None:
        return ""
    (job, most_s), facts = first, held.facts
    left_s = facts.time_left_s if facts.time_s else math.inf
    if left_s <= most_s + SOONER_S:
        return ""
    jobs.remember(replace(job, cuts_s=job.cuts_s + left_s - most_s))
    passed_s = facts.time_s - facts.time_left_s if facts.time_s else time.time() - facts.created_at
    call(_set_limit(pool, held.reservation_id, name, passed_s + most_s))
    places = {node.node_address: place for place, node in held.connections.items()}
    leaving = [places[address] for address in jobs.nodes_in(job, {address: address for address in places})]
    names = ", ".join(held.connections[place].name for place in leaving)
    line = (
        f"{jobs.title_of(job)} with {names} ends first: {name} is held for {duration(most_s)} now, "
        f"until {time_of_day(time.time() + most_s)}"
    )
    return "; ".join([line, *(f"{way} goes on without" for way in filter(None, [way_without(held, leaving)]))])


def _jobs_of(pool: Pool, held: HeldReservation) -> tuple[list[Job], float]:
    """Return the jobs of which a reservation has nodes, and by how much others have cut its time: they do no longer."""
    named = {node.node_address: node.name for node in held.connections.values()}
    bringing, cut_s = list[Job](), 0.0
    for job in jobs.jobs_of_pool(pool.name):
        if jobs.nodes_in(job, named):
            bringing.append(replace(job, unwanted=False))
            kept = bringing[-1]
        else:
            cut_s += job.cuts_s
            kept = replace(job, cuts_s=0.0)
        if kept != job:
            jobs.remember(kept)
    return bringing, cut_s


async def _limit_and_left_s(pool: Pool, reservation_id: str, name: str) -> tuple[float, float]:
    held = await pool.held(reservation_id, name)
    statuses = [status for _, status in held.nodes.values()]
    limit_s = max(status.time_s for status in statuses)
    if not limit_s:
        raise UsageError(f"{name} has no time limit: it is held until it is released")
    if held.missing:
        raise await asyncio.to_thread(not_whole, held, pool.name)
    return limit_s, min(status.time_left_s + limit_s - status.time_s for status in statuses)


async def _set_limit(pool: Pool, reservation_id: str, name: str, limit_s: float) -> None:
    held = await pool.held(reservation_id, name)

    def limit(time_s: float) -> list[pb.ExtendRequest]:
        return [pb.ExtendRequest(reservation_id=reservation_id, time_s=time_s)]

    requests = {connection: (limit(limit_s), limit(status.time_s)) for connection, status in held.nodes.values()}
    await all_or_none("Extend", requests)
