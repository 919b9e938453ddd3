"""What reservations in jobs of engines cost: what their jobs do that still run."""

from __future__ import annotations

from collections.abc import Collection

from monarch_nb.provision import jobs


def price_per_hour(pool: str, reservation: str, ended: Collection[str] = ()) -> float:
    """Return what a reservation costs in US dollars; 0 when it is in no job, or the engine does not know.

    Args:
        ended: the ids of jobs that cost nothing any more, as `ended_in` has them.
    """
    of_pool = [job for job in jobs.jobs_of_pool(pool) if job.reservation == reservation]
    return sum(job.price_per_hour for job in of_pool if job.id not in ended)


def ended_in(pool: str) -> frozenset[str]:
    """Return the ids of a pool's jobs that have ended. Engines are asked, which may take a while: only where a node is
    lost can there be such jobs, which are remembered until it is replaced."""
    return frozenset(job.id for job in jobs.jobs_of_pool(pool) if jobs.has_ended(job))
