"""Nodes for a reservation from a further job, where its nodes come as jobs of an engine: asked for when it needs more
than there are, ended when it has none of them any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.leasing.attempts import MOST_RACES
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.errors import CapacityError, MonarchNbError, UsageError, say_too
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


@dataclass(frozen=True)
class Ended:
    """What became of jobs that are needed no more.

    Attributes:
        jobs: those that have ended.
        failures: what there is to say of those that could not be ended.
    """

    jobs: tuple[Job, ...] = ()
    failures: tuple[str, ...] = ()


def with_further_nodes(
    pool: Pool,
    asking: Asking,
    missing: Callable[[], Coroutine[Any, Any, tuple[int, float]]],
    say: Progress,
    take: Callable[[bool | Duration], T],
) -> T:
    """Return what `take` returns, which is told whether to wait for what others hold. In the pool of a job the engine
    is asked for another one first, when nodes are missing, and so it is when others were faster. One that was asked for
    here is ended if nothing comes of it.

    Args:
        missing: returns, on the background loop, how many nodes are missing, and what is left of the reservation's
            time; 0 for no limit.

    Raises:
        UsageError: `time` was said, and no engine is asked. What monarch_nb.provision.jobs.add raises, and `take`.
    """
    like = jobs.job_of_pool(pool.name)
    if like is None:
        if asking.time is not None:
            raise UsageError("--time is for nodes of an engine (--on): you hold other nodes until you release them")
        return take(asking.wait)
    longest_s = None if isinstance(asking.wait, bool) else seconds_of(asking.wait, "wait")
    added: list[Job] = []

    def ask() -> bool:
        """Return whether no node is missing then: else the new ones are not what they should be, as `take` says."""
        count, left_s = call(missing())
        while count:
            time_s = left_s and left_s + jobs.SOONER_S if asking.time is None else seconds_of(asking.time, "time")
            added.append(jobs.add(like, count, time_s, longest_s, say))
            before, (count, left_s) = count, call(missing())
            if count >= before:
                return False
        return True

    try:
        for _ in range(MOST_RACES):
            are_there = ask()
            try:
                return take(False)
            except CapacityError:
                if not are_there:
                    raise
        ask()
        return take(False)
    except BaseException as error:
        ended = end_unused(pool, added, say)
        titles = map(jobs.title_of, ended.jobs if isinstance(error, KeyboardInterrupt) else ())
        say_too(error, *(f"{title} was cancelled" for title in titles), *ended.failures)
        raise


def end_jobs_of(pool: Pool, left: Collection[Connection], say: Progress) -> Ended:
    """End the jobs that have brought some nodes, and of which no node is held any more; and those that were to be
    ended before. Those that have ended by themselves, without a node that is held, are forgotten.

    Args:
        left: nodes that a reservation has given back.
    """
    named = {node.node_address: node.name for node in left}
    of_pool = jobs.jobs_of_pool(pool.name)
    done = [job for job in of_pool if named and (jobs.nodes_in(job, named) or jobs.has_ended(job))]
    return end_unused(pool, [*done, *(job for job in of_pool if job.unwanted and job not in done)], say)


def end_unused(pool: Pool, some: Collection[Job], say: Progress) -> Ended:
    """End those of some jobs of which no node is held."""
    ended: list[Job] = []
    failures: list[str] = []
    try:
        used = call(_used(pool)) if some else {}
    except MonarchNbError as error:
        titles = ", ".join(map(jobs.title_of, some))
        return Ended(failures=(f"it is not known whether a node of {titles} is held ({error}): %mesh list says more",))
    for job in some:
        if jobs.nodes_in(job, used):
            continue
        if said := jobs.why_not_ended(job, say):
            failures.append(said)
        else:
            ended.append(job)
    return Ended(tuple(ended), tuple(failures))


async def _used(pool: Pool) -> dict[str, str]:
    """Return the names of the nodes that reservations have, by address; also of those that do not answer."""
    told = await pool.ask()
    used = {connection.node_address: connection.name for connection, reply in told if reply.reservations}
    members = (node for held in pool.put_together(told) for node in held.connections.values())
    return used | {node.node_address: node.name for node in members}
