"""Which reservation is meant: by name, or the only one; and where it is when it is not in the pool that was asked."""

from __future__ import annotations

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.facts import missing
from monarch_nb.client.pools.facts.held import HeldReservation, is_called
from monarch_nb.client.pools.pool import Pool
from monarch_nb.client.reservations import sharing
from monarch_nb.client.reservations.known.lists import elsewhere
from monarch_nb.config import default_pool
from monarch_nb.errors import AccessDenied
from monarch_nb.provision.known import known_pools


def find(pool: Pool, name: str | None, notebook: str | None) -> HeldReservation:
    """Return what `attach` attaches to; it raises what that does."""
    if not pool.is_up:
        if there := elsewhere(name, pool.name):
            raise missing.not_found(name, [], pool=pool.name, elsewhere=there)
        if name and pool.name == default_pool():  # which is meant when none is named: that it is not up is no news
            raise missing.not_found(name, [])
    held = call(pool.reservations())
    try:
        matching = _matching(held, name, notebook)
    except AccessDenied as error:
        if there := elsewhere(name, pool.name):
            raise AccessDenied(f"{error}; {there}", error.owner, error.name) from None
        raise
    if not matching:
        several = pool.name if len(known_pools()) > 1 else ""
        silent = pool.silent
        raise missing.not_found(name, held, call(pool.ended()), several, elsewhere(name, pool.name), silent)
    if not matching[-1].usable:
        raise missing.not_whole(matching[-1], pool.name)
    return matching[-1]


def _matching(held: list[HeldReservation], name: str | None, notebook: str | None) -> list[HeldReservation]:
    mine = [one for one in held if one.is_mine]
    if name:
        called = [one for one in mine if is_called(name, one.facts.name, one.facts.owner)]
        return called or sharing.shared(name, held)
    return [one for one in mine if notebook and one.facts.notebook == notebook] or (mine if len(mine) == 1 else [])
