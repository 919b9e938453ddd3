"""What is held in a pool, and what was."""

from __future__ import annotations

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.infos import EndedReservation, ReservationInfo, ended_reservation, reservation_info
from monarch_nb.client.pools.pool import pool_named


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
