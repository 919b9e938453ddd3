"""`monarch-nb release`: what is held is given back, and jobs of engines end."""

from __future__ import annotations

import argparse
import sys

from monarch_nb.cli.hints import typed_here
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError


def run(options: argparse.Namespace) -> int:
    """Release what is named, or everything. One that can not be released does not keep the others."""
    from monarch_nb.client.pools.pool import pool_object
    from monarch_nb.client.reservations.known.lists import elsewhere, list_everywhere

    pool_object(options.pool).revive(_say)
    if options.name and "/" in options.name:
        if options.save:
            raise UsageError("not released: only its owner can have its ranks save: monarch-nb release without --save")
        return _release_of(options.name, options.pool)
    names = [options.name] if options.name else _held(options.pool)
    if len(names) > 1 and not options.all:
        raise UsageError(f"you hold {', '.join(names)}: name one, or --all")
    errors: list[MonarchNbError] = []
    for name in names:
        try:
            print(_released(name, options.pool, saves=options.save))
        except MonarchNbError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else MonarchNbError("\n".join(map(str, errors)))
    if not names:
        there = typed_here(elsewhere(None, options.pool), options.words)
        print(f"nothing is held in the pool {options.pool}; {there}" if there else "nothing is held")
        for line in list_everywhere().besides:
            print(typed_here(line))
    return 0


def _held(pool: str) -> list[str]:
    """Return the names of what we hold in a pool, and of what its jobs were asked for."""
    from monarch_nb import list_reservations
    from monarch_nb.provision import jobs

    held = [info.name for info in list_reservations(pool) if info.held_by_me]
    return list(dict.fromkeys([*held, *(job.reservation for job in jobs.jobs_of_pool(pool))]))


def _released(name: str, pool: str, *, saves: bool) -> str:
    """Release a reservation, also one whose nodes are away, gone or were never there; return what to say.

    Args:
        saves: first save what its ranks hold.

    Raises:
        UsageError, SaveError: as of `save_before_release`. It is not released then.
    """
    from monarch_nb import attach, list_reservations
    from monarch_nb.client.reservations.unattached import release_unattached
    from monarch_nb.client.saving.before_release import save_before_release

    said: list[str] = []
    try:
        mine = {info.name: info for info in list_reservations(pool) if info.held_by_me}
        if name not in mine:
            raise _not_held(name, list(mine), pool)
        reservation = attach(name, pool=pool)
    except MonarchNbError as error:
        return release_unattached(name, pool, error, _say)
    if saves:
        save_before_release(reservation.name, reservation.meshes.now(), said)
    return "\n".join([*said, f"released {name} ({mine[name].shape})", *map(str, reservation.release())])


def _not_held(name: str, mine: list[str], pool: str) -> MonarchNbError:
    from monarch_nb.client.reservations.known.lists import elsewhere

    if there := elsewhere(name, pool):
        return ReservationNotFound(f"no reservation {name!r} of yours in the pool {pool}; {there}")
    return ReservationNotFound(f"no reservation {name!r}; you hold {', '.join(mine) or 'none'}")


def _release_of(name: str, pool: str) -> int:
    """Somebody else's, OWNER/NAME: who made the pool may."""
    from monarch_nb.client.reservations.known.lists import release_of

    kept = release_of(name, pool)
    owner, _, short = name.partition("/")
    print("\n".join([f"released {short} of {owner}", *map(str, kept)]))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
