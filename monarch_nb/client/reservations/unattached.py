"""Releasing what can not be attached to: its job is left and nobody holds it, or nodes do not answer that have, or may
have, a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.leasing.releasing import release
from monarch_nb.client.pools.pool import Pool, Progress, pool_named
from monarch_nb.client.presenting import where_here
from monarch_nb.client.reservations.known.lists import elsewhere
from monarch_nb.client.reservations.reserving.jobs import end_job_of
from monarch_nb.errors import (
    MonarchNbError,
    NodeUnreachable,
    ReservationExpired,
    ReservationNotFound,
    ReservationReleased,
)
from monarch_nb.ground.rank_sets import listed
from monarch_nb.trust.pools import is_pool


def release_unattached(name: str, pool: str | None, error: MonarchNbError, say: Progress) -> str:
    """Release what nobody could attach to; return what there is to say of it.

    Args:
        pool: that is meant; None for the default one, or any with a job of that name.
        error: what attaching ended with: it is raised when there is nothing to release.

    Raises:
        ReservationNotFound: nodes that do not answer may have it, but held none of that name when they last did.
        PoolError: the engine does not answer.
    """
    if ended := end_job_of(name, pool, say):
        return f"{name}: no node of it is held; ended {ended}"
    chosen = pool_named(pool)
    if isinstance(error, NodeUnreachable) and _some_answer(chosen) and (text := _released(name, chosen)):
        return text
    if not _may_be_on_silent_nodes(name, chosen, error):
        raise error
    held = chosen.held_on_silent()
    if held is not None and name not in held:
        raise _not_on_silent_nodes(name, chosen, held, error)
    if not call(chosen.late_releases.add(name=name, by=where_here())):
        raise error
    return _to_be_released(name, chosen)


def _to_be_released(name: str, pool: Pool) -> str:
    """Return what is said of a release of which no node could be told."""
    nodes = pool.silent
    do, they = ("does", "it") if len(nodes) == 1 else ("do", "they")
    whose = "that answers holds it" if _some_answer(pool) else f"of the pool {pool.name} answers"
    then = f"the next command or panel here that asks the pool {pool.name}"
    return (
        f"{name}: no node {whose}; {listed(nodes)} {do} not answer: a reservation of that name "
        f"there goes on until {they} {do}; then {then} releases it"
    )


def _not_on_silent_nodes(name: str, pool: Pool, held: Sequence[str], error: MonarchNbError) -> ReservationNotFound:
    """Return the error that says what the nodes held that do not answer, and which name may have been meant."""
    nodes = pool.silent
    do, they = ("does", "it") if len(nodes) == 1 else ("do", "they")
    near = "".join(f"; did you mean {close}?" for close in get_close_matches(name, held, n=1))
    what = f"{listed(held)} of yours" if held else "nothing of yours"
    said = f"{listed(nodes)} {do} not answer, and held {what} when {they} last did{near}"
    return ReservationNotFound(f"{error}; {said}" if _some_answer(pool) else f"no reservation {name!r}: {said}")


def _some_answer(pool: Pool) -> bool:
    return len(pool.silent) < len(pool.listed)


def _released(name: str, pool: Pool) -> str:
    """Release what some nodes hold, of which others are away that it can not be used without."""
    held = call(pool.find(name))
    if held is None:
        return ""
    released = call(release(held.connections.values(), held.reservation_id, by=where_here()))
    if released.failed:
        raise released.failed[0]
    return "\n".join([f"{name}: released {held.shape}", *map(str, released.leftovers)])


def _may_be_on_silent_nodes(name: str, pool: Pool, error: MonarchNbError) -> bool:
    if not isinstance(error, NodeUnreachable | ReservationNotFound) or isinstance(
        error, ReservationExpired | ReservationReleased
    ):
        return False
    return bool("/" not in name and pool.silent and is_pool(pool.name) and not elsewhere(name, pool.name))
