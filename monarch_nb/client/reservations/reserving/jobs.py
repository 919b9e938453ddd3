"""Reservations whose nodes come as a job of an engine (`--on`): asked for, waited for, ended with the reservation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.client.pools.leasing.releasing import ReleasedLater
from monarch_nb.client.pools.pool import Progress
from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, MonarchNbError, ReservationConflict, UsageError, say_too
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import UNHELD_S, Ask, Job
from monarch_nb.times import duration


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
                f"{request.name!r} is on {other.on} already ({jobs.title_of(other)}): {named} releases it, --replace "
                "does that first, or choose another name"
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
