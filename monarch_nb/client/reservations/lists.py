"""What is held in a pool, and what was; and what somebody else holds, given back."""

from __future__ import annotations

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.infos import EndedReservation, ReservationInfo, ended_reservation, reservation_info
from monarch_nb.client.pools.pool import KeptFiles, pool_named, release
from monarch_nb.errors import ReservationNotFound


def list_reservations(pool: str | None = None, *, memory: bool = False) -> list[ReservationInfo]:
    """Return every reservation in the pool, oldest first; an empty list when no pool is up.

    Args:
        memory: measure that of every rank too, which takes some milliseconds each.
    """
    chosen = pool_named(pool)
    if not chosen.is_up:
        return []
    return [reservation_info(held) for held in call(chosen.reservations(memory=memory))]


def list_ended(pool: str | None = None) -> list[EndedReservation]:
    """Return the reservations of yours that were released by themselves, as far as nodes remember, oldest first."""
    chosen = pool_named(pool)
    if not chosen.is_up:
        return []
    return [ended_reservation(one) for one in call(chosen.ended())]


def release_of(owner: str, name: str, pool: str | None = None) -> list[KeptFiles]:
    """End what somebody else holds, as who made the pool may; return what its ranks wrote into copies of files.

    Raises:
        ReservationNotFound: that owner holds no such.
        AccessDenied: we did not make the pool.
        NodeUnreachable: a node did not answer: its ranks go on.
    """
    for held in call(pool_named(pool).reservations()):
        if (held.facts.owner, held.facts.name) == (owner, name):
            nodes = [connection for connection, _ in held.nodes.values()]
            released = call(release(nodes, held.reservation_id))
            if released.failed:
                raise released.failed[0]
            return released.kept
    raise ReservationNotFound(f"{owner} holds no {name}")
