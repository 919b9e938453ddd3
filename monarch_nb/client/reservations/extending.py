"""Holding nodes for longer: on every node, and where they came as a job."""

from __future__ import annotations

import asyncio

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import Pool, not_whole
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import jobs


def extend(pool: Pool, reservation_id: str, name: str, by_s: float) -> float:
    """Add to a reservation's time limit, and to that of its job; return how many seconds are left now.

    Raises:
        UsageError: it has no time limit, or is in a job that this user can not extend.
        NodeUnreachable: a node does not answer: nothing is changed, for all must agree.
        PoolError: the engine of its job does not answer.
        ReservationNotFound: it was released.
    """
    limit_s, left_s = call(_limit_and_left_s(pool, reservation_id, name))
    if job := jobs.job_of_pool(pool.name):
        jobs.extend(job, by_s)
    call(_set_limit(pool, reservation_id, name, limit_s + by_s))
    return left_s + by_s


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
    request = pb.ExtendRequest(reservation_id=reservation_id, time_s=limit_s)
    await asyncio.gather(*(connection.unary("Extend", request) for connection, _ in held.nodes.values()))
