"""Reservations whose nodes come as a job of an engine (`--on`): asked for, waited for, ended with the reservation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.pool import Progress
from monarch_nb.config import TrustPaths
from monarch_nb.errors import UsageError
from monarch_nb.provision import jobs
from monarch_nb.provision.launchers import Ask, Job


@dataclass(frozen=True)
class JobRequest:
    """What is asked of an engine for a reservation.

    Attributes:
        on: the launcher; None when no engine is asked.
        arguments: for the engine alone.
        name, shape: of the reservation.
        time_s: how long; 0 for as long as the engine gives.
        longest_s: how long to wait; None for as long as it takes.
        replace: end a job of that name first.
    """

    on: str | None
    arguments: tuple[str, ...]
    name: str
    shape: Shape
    time_s: float
    longest_s: float | None
    replace: bool


@contextmanager
def nodes_of_job(request: JobRequest, pool: str | None, say: Progress) -> Iterator[tuple[str | None, float]]:
    """Yield the pool that a reservation is to be in and how long it can last, when all nodes of its job serve. Without
    an engine: the pool that is asked for, or that of the job that has the reservation already.

    When Ctrl-C ends the block, a job that is new is ended as well. Other failures leave it: who mends his request and
    asks again has its nodes at once, and else its allocators end by themselves.

    Raises:
        UsageError: what is asked for makes no sense. What monarch_nb.provision.jobs.obtain raises.
    """
    job, is_new = _job(request, pool, say)
    if job is None:
        yield pool, request.time_s
        return
    try:
        left_s = jobs.time_left_s(job)
        yield job.pool, min(filter(None, (request.time_s, left_s)), default=0.0)
    except KeyboardInterrupt:
        if is_new:
            jobs.end(job)
        raise


def _job(request: JobRequest, pool: str | None, say: Progress) -> tuple[Job | None, bool]:
    """Return the job, and whether it is new."""
    if request.on is None:
        if request.arguments:
            raise UsageError(f"{' '.join(request.arguments)}: what stands after -- is for --on")
        if pool is not None:
            return jobs.job_of_pool(pool), False
        if jobs.job_of(request.name):
            jobs.sweep()  # one that has ended is nobody's
        return jobs.job_of(request.name), False
    if pool is not None:
        raise UsageError("say --pool or --on, not both: a job has a pool of its own")
    made = jobs.pool_name(request.on, request.name)
    if request.replace and (before := jobs.job_of_pool(made)):
        jobs.end(before, say)

    def ask(pool: str, paths: TrustPaths) -> Ask:
        shape = request.shape
        return Ask(request.name, pool, shape.nodes, shape.procs, shape.gpus, request.time_s, request.arguments, paths)

    return jobs.obtain(request.on, ask, made, request.longest_s, say)


def end_job_of(name: str, pool: str | None, say: Progress) -> bool:
    """End the job that a reservation of that name is in, or waits for; return whether there was one.

    Args:
        pool: that is meant; None for any.

    Raises:
        PoolError: the engine does not answer.
    """
    job = jobs.job_of(name)
    if job is None or pool not in (None, job.pool):
        return False
    jobs.end(job, say)
    return True
