"""Nodes for a reservation from a further job, where its nodes come as jobs of an engine: asked for when it needs more
than there are, ended when it has none of them any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Job
from monarch_nb.times import Duration, seconds_of

T = TypeVar("T")


@dataclass(frozen=True)
class Asking:
    """How a reservation may get nodes that are not free.

    Attributes:
        wait: for what others hold, or for the engine; and how long.
        time: how long an engine is asked for them; None for what is left of the reservation's time.
    """

    wait: bool | Duration
    time: Duration | None = None


def with_further_nodes(
    pool: Pool,
    asking: Asking,
    missing: Callable[[], Coroutine[Any, Any, tuple[int, float]]],
    say: Progress,
    take: Callable[[bool | Duration], T],
) -> T:
    """Return what `take` returns, which is told whether to wait for what others hold. In the pool of a job the engine
    is asked for another one first, when nodes are missing. One that was asked for here is ended if nothing comes of it.

    Args:
        missing: returns, on the background loop, how many nodes are missing, and what is left of the reservation's
            time; 0 for no limit.

    Raises:
        UsageError: `time` was said, and no engine is asked. What monarch_nb.provision.jobs.add raises, and `take`.
    """
    like = jobs.job_of_pool(pool.name)
    if like is None:
        if asking.time is not None:
            raise UsageError(
                "--time is for nodes that an engine is asked for (--on): others stay as long as they are held"
            )
        return take(asking.wait)
    longest_s = None if isinstance(asking.wait, bool) else seconds_of(asking.wait, "wait")
    added: list[Job] = []
    try:
        count, left_s = call(missing())
        while count:
            time_s = left_s and left_s + jobs.SOONER_S if asking.time is None else seconds_of(asking.time, "time")
            added.append(jobs.add(like, count, time_s, longest_s, say))
            before, (count, left_s) = count, call(missing())
            if count >= before:
                break  # the new nodes are not what they should be: `take` says so
        return take(False)
    except BaseException:
        end_unused(pool, added, say)
        raise


def end_jobs_of(pool: Pool, left: Collection[Connection], say: Progress) -> list[Job]:
    """End the jobs that have brought some nodes, and of which no node is held any more; return which. Those that have
    ended by themselves, without a node that is held, are forgotten.

    Args:
        left: nodes that a reservation has given back.
    """
    named = {node.node_address: node.name for node in left}
    of_pool = jobs.jobs_of_pool(pool.name) if named else []
    return end_unused(pool, [job for job in of_pool if jobs.nodes_in(job, named) or jobs.has_ended(job)], say)


def end_unused(pool: Pool, some: Collection[Job], say: Progress) -> list[Job]:
    """End those of some jobs of which no node is held; return which. One that can not be ended now ends by itself."""
    ended: list[Job] = []
    with suppress(MonarchNbError):
        used = call(_used(pool)) if some else {}
        for job in some:
            if not jobs.nodes_in(job, used):
                ended.append(job)
                jobs.end(job, say)
    return ended


async def _used(pool: Pool) -> dict[str, str]:
    """Return the names of the nodes that reservations have, by address; also of those that do not answer."""
    told = await pool.ask()
    used = {connection.node_address: connection.name for connection, reply in told if reply.reservations}
    members = (node for held in pool.put_together(told) for node in held.connections.values())
    return used | {node.node_address: node.name for node in members}
