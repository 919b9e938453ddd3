"""Reservations whose nodes come as a job of an engine (`--on`): asked for, waited for, asked for more, held for longer,
ended."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from monarch_nb.client.connections.asking import all_or_none
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import HeldReservation, not_whole, reserve_line
from monarch_nb.client.pools.leasing import MOST_RACES, ReleasedLater, not_released, release
from monarch_nb.client.pools.pool import Pool, Progress, pool_named
from monarch_nb.client.presenting import where_here
from monarch_nb.config import TrustPaths
from monarch_nb.errors import (
    ATTACH_USES_IT,
    CapacityError,
    MonarchNbError,
    NodeUnreachable,
    PoolError,
    ReservationConflict,
    ReservationExpired,
    UsageError,
    say_too,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import UNHELD_S, Ask, Job
from monarch_nb.times import Duration, duration, seconds_of, time_of_day


@dataclass(frozen=True)
class JobRequest:
    """What is asked of an engine for a reservation.

    Attributes:
        on: the launcher, with its target if it has one; None when no engine is asked.
        arguments: for the engine alone.
        name, shape: of the reservation.
        time_s: how long; 0 for as long as the engine gives.
        longest_s: how long to wait; None for as long as it takes.
        replace: end a job of that name first, whichever engine has it.
        preload: what its nodes begin to import as soon as they serve.
    """

    on: str | None
    arguments: tuple[str, ...]
    name: str
    shape: Shape
    time_s: float
    longest_s: float | None
    replace: bool
    preload: tuple[str, ...]


@contextmanager
def nodes_of_job(request: JobRequest, pool: str | None, say: Progress) -> Iterator[tuple[str | None, float]]:
    """Yield the pool that a reservation is to be in and how long it can last, when all nodes of its job serve. Without
    an engine: the pool that is asked for, or that of the job that has the reservation already.

    When Ctrl-C ends the block, a job that is new is ended as well, and so is one that was asked for here and has not
    what it was asked for. Other failures leave it, and say so: who mends his request and asks again has its nodes at
    once, and else its allocators end by themselves.

    Raises:
        UsageError: what is asked for makes no sense. What monarch_nb.provision.jobs.obtain raises.
    """
    found = _found(request, pool, say)
    if (job := found.job) is None:
        yield pool, request.time_s
        return
    try:
        left_s = jobs.time_left_s(job.pool)
        yield job.pool, min(filter(None, (request.time_s, left_s)), default=0.0)
    except KeyboardInterrupt as interrupt:
        if found.is_new:
            say_too(interrupt, jobs.why_not_ended(job) or f"{jobs.title_of(job)} was cancelled")
        raise
    except CapacityError as error:
        if not found.is_own:
            raise  # others may have its nodes
        ended = jobs.why_not_ended(job, say) or f"{jobs.title_of(job)} was asked for this, and is ended"
        raise CapacityError(f"{error}; {ended}") from None
    except MonarchNbError as error:
        if found.is_own:
            unheld = f"{jobs.title_of(job)} is there for {duration(UNHELD_S)} without a reservation"
            kept = f"{unheld}: another %mesh reserve {request.name} has its nodes, %mesh release {request.name} ends it"
            error.args = (f"{error}\n{kept}", *error.args[1:])
        raise


@dataclass(frozen=True)
class _Found:
    """A job, if there is any; whether it was waited for here, and whether it was asked for here as well."""

    job: Job | None
    is_new: bool = False
    is_own: bool = False


def _found(request: JobRequest, pool: str | None, say: Progress) -> _Found:
    on = request.on
    if on is None:
        if request.arguments:
            raise UsageError(f"{' '.join(request.arguments)}: words after -- are for --on")
        if pool is not None:
            return _Found(jobs.job_of_pool(pool))
        if jobs.job_of(request.name):
            jobs.sweep()  # one that has ended is nobody's
        return _Found(jobs.job_of(request.name))
    if pool is not None:
        raise UsageError("say --pool or --on, not both: a job has a pool of its own")
    made = jobs.pool_name(on, request.name)
    _make_way(request, made, say)

    def ask(pool: str, paths: TrustPaths) -> Ask:
        shape = request.shape
        return Ask(
            request.name,
            pool,
            shape.nodes,
            shape.procs,
            shape.gpus,
            request.time_s,
            request.arguments,
            paths,
            preload=request.preload,
        )

    before = jobs.job_of_pool(made)
    job, is_new = jobs.obtain(on, ask, made, request.longest_s, say)
    return _Found(job, is_new, is_new and (before is None or before.id != job.id))


def _make_way(request: JobRequest, made: str, say: Progress) -> None:
    """End what has the name, if that is asked for; else refuse a second reservation of that name on another engine.

    Raises:
        ReservationConflict: another engine has one.
    """
    if request.replace:
        for before in jobs.jobs_of(request.name):
            jobs.end(before, say)
    if any(job.pool != made for job in jobs.jobs_of(request.name)):
        jobs.sweep()  # one that has ended is nobody's
    for other in jobs.jobs_of(request.name):
        if other.pool != made:
            named = f"%mesh release {request.name} --pool {other.pool}"
            raise ReservationConflict(
                f"{request.name!r} is on {other.on} already ({jobs.title_of(other)}): "
                f"{ATTACH_USES_IT.format(request.name)}; {named} releases it, --replace does that first, or choose "
                "another name"
            )


def end_job_of(name: str, pool: str | None, say: Progress) -> str:
    """End the jobs that a reservation of that name is in, or waits for; return what they are called, nothing if there
    are none.

    Args:
        pool: that is meant; None for any.

    Raises:
        PoolError: the engine does not answer.
    """
    job = next((job for job in jobs.jobs_of(name) if pool in (None, job.pool)), None)
    if job is None:
        return ""
    titles = jobs.title_of_pool(job.pool)
    untold = map(ReleasedLater, jobs.end_all(job.pool, say))
    return "\n".join([titles, *map(str, untold)])


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
            if job.unwanted:  # but it is wanted again
                jobs.remember(replace(job, unwanted=False))
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


SOONER_S = 60.0
"""A job that ends so little before its reservation's time is up ends with it."""


def extend(pool: Pool, reservation_id: str, name: str, by_s: float) -> float:
    """Add to a reservation's time limit, and to that of its job; return how many seconds are left now.

    Raises:
        UsageError: it has no time limit, or is in a job that this user can not extend.
        ReservationExpired: its time was up.
        NodeUnreachable: a node does not answer: nothing is changed, for all must agree.
        PoolError: the engine of its job does not answer.
        ReservationNotFound: it was released.
    """
    limit_s, left_s = call(_limit_and_left_s(pool, reservation_id, name))
    jobs.extend(pool.name, by_s, left_s)
    call(_set_limit(pool, reservation_id, name, limit_s + by_s))
    return left_s + by_s


def end_with_first_job(pool: Pool, held: HeldReservation) -> str:
    """Let a reservation end before the first of its jobs does; return what there is to say of that, if it is sooner
    than it was to end, or if that can not be known or done now."""
    name, facts = held.facts.name, held.facts
    try:
        if (first := jobs.ends_first(jobs.jobs_of_pool(pool.name))) is None:
            return ""
        job, most_s = first
        if (facts.time_left_s if facts.time_s else math.inf) <= most_s + SOONER_S:
            return ""
        passed_s = facts.time_s - facts.time_left_s if facts.time_s else time.time() - facts.created_at
        call(_set_limit(pool, held.reservation_id, name, passed_s + most_s))
    except (PoolError, NodeUnreachable) as error:
        return f"how long {name} is held was not changed, although its jobs may end sooner: {error}"
    until = time_of_day(time.time() + most_s)
    return f"{jobs.title_of(job)} ends first, and {name} with it: it is held for {duration(most_s)} now, until {until}"


async def _limit_and_left_s(pool: Pool, reservation_id: str, name: str) -> tuple[float, float]:
    held = await pool.held(reservation_id, name)
    statuses = [status for _, status in held.nodes.values()]
    limit_s = max(status.time_s for status in statuses)
    if not limit_s:
        raise UsageError(f"{name} has no time limit: it is held until it is released")
    left_s = min(status.time_left_s + limit_s - status.time_s for status in statuses)
    if not left_s:  # nodes that are missing have released it already
        why = f"its time of {duration(limit_s)} was up"
        raise ReservationExpired(
            f"{name} is being released: {why}; {reserve_line(name, held.shape, held.facts.where)} makes a new one",
            name,
            why,
            time.time(),
        )
    if held.missing:
        raise await asyncio.to_thread(not_whole, held, pool.name)
    return limit_s, left_s


async def _set_limit(pool: Pool, reservation_id: str, name: str, limit_s: float) -> None:
    held = await pool.held(reservation_id, name)

    def limit(time_s: float) -> list[pb.ExtendRequest]:
        return [pb.ExtendRequest(reservation_id=reservation_id, time_s=time_s)]

    requests = {connection: (limit(limit_s), limit(status.time_s)) for connection, status in held.nodes.values()}
    await all_or_none("Extend", requests)


def release_unattached(name: str, pool: str | None, error: MonarchNbError, say: Progress) -> str:
    """Release what nobody could attach to; return what there is to say of it.

    Args:
        pool: that is meant; None for the default one, or any with a job of that name.
        error: what attaching ended with: it is raised when there is nothing to release.

    Raises:
        PoolError: the engine does not answer.
    """
    if ended := end_job_of(name, pool, say):
        return f"{name}: no node of it is held; ended {ended}"
    if isinstance(error, NodeUnreachable) and (text := _released(name, pool_named(pool))):
        return text
    raise error


def _released(name: str, pool: Pool) -> str:
    """Release what some nodes hold, of which others are away that it can not be used without."""
    if len(pool.silent) == len(pool.listed) or (held := call(pool.find(name))) is None:
        return ""
    released = call(release(held.connections.values(), held.reservation_id, by=where_here()))
    if released.failed:
        raise not_released(name, released.failed[0])
    return "\n".join([f"{name}: released {held.shape}", *map(str, released.leftovers)])
