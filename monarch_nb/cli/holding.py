"""`monarch-nb reserve`, `release`, `replace`, `grow`, `shrink` and `stop`: what is held. `interrupt`, `restart`,
`stacks`: what runs there.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from monarch_nb.cli.declared import parsed_of, part_of
from monarch_nb.cli.saying import say, say_step, tell
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.notebook.syntax.holding import RESERVE, asked_for, held_as
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

ONLY_IN_NOTEBOOKS = ("--resume", "--setup")
"""What is about the cells of a notebook."""


def reserve(options: argparse.Namespace) -> int:
    """Hold what is asked for; the same again says that it is held already."""
    from monarch_nb import list_everywhere, reserve
    from monarch_nb.client.reservations.reserve import DEFAULT_NAME
    from monarch_nb.client.reservations.taking import unset_note

    steps: list[str] = []

    def progress(line: str) -> None:
        steps.append(line)
        say_step(line)

    began_s = time.monotonic()
    parsed = parsed_of(RESERVE, options)
    named = options.pool if options.is_pool_named else None
    found = held_as(parsed, options.name or DEFAULT_NAME, named, list_everywhere)
    asked, pool = asked_for(parsed, found), found.pool if found else options.pool
    if note := unset_note(asked["env"]):
        say(note)
    held = reserve(options.name, **asked, pool=pool, directory=os.getcwd(), progress=progress)
    info = held.status(memory=False)
    ready = f"ready in {duration(time.monotonic() - began_s)}" if steps else "held already"
    left = f", {info.left} left" if info.left else ""
    tell(f"{held.name}: {info.shape}, {counted(len(held.mesh.ranks), 'rank')} {ready}{left}")
    if directory := parsed.text("save"):
        tell(held.mesh.autosave(directory, at_end=True))
    pool = f" --pool {held.pool}" if options.is_pool_named else ""
    tell(f"monarch-nb run {held.name}{pool} SCRIPT runs a script there, monarch-nb release {held.name}{pool} ends it")
    return 0


def release(options: argparse.Namespace) -> int:
    """Release what is named, or everything. One that can not be released does not keep the others."""
    from monarch_nb.client.pools.pool import pool_object
    from monarch_nb.client.reservations.lists import elsewhere, list_everywhere

    pool_object(options.pool).revive(say)
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
            tell(_released(name, options.pool, saves=options.save))
        except MonarchNbError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else MonarchNbError("\n".join(map(str, errors)))
    if not names:
        there = elsewhere(None, options.pool)
        tell(f"you hold nothing in the pool {options.pool}{f'; {there}' if there else ': there is nothing to release'}")
        for line in list_everywhere().besides:
            tell(line)
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
    from monarch_nb.client.reservations.jobs import release_unattached
    from monarch_nb.client.saving.autosaves import save_before_release

    said: list[str] = []
    try:
        mine = {info.name: info for info in list_reservations(pool) if info.held_by_me}
        if name not in mine:
            raise _not_held(name, list(mine), pool)
        reservation = attach(name, pool=pool)
    except MonarchNbError as error:
        return release_unattached(name, pool, error, say)
    if saves:
        save_before_release(reservation.name, reservation.meshes.now(), said)
    left = map(str, reservation.release())
    return "\n".join([*said, f"released {name} ({mine[name].shape})", *left])


def _not_held(name: str, mine: list[str], pool: str) -> MonarchNbError:
    from monarch_nb.client.pools.pool import pool_object
    from monarch_nb.client.reservations.lists import elsewhere

    if there := elsewhere(name, pool):
        return ReservationNotFound(f"no reservation {name!r} of yours in the pool {pool}; {there}")
    silent = pool_object(pool).silent
    on = f" on the nodes that answer ({listed(silent)} {'does' if len(silent) == 1 else 'do'} not)" if silent else ""
    return ReservationNotFound(f"no reservation {name!r}{on}; you hold {', '.join(mine) or 'none'}")


def _release_of(name: str, pool: str) -> int:
    """Somebody else's, OWNER/NAME: who made the pool may."""
    from monarch_nb.client.reservations.lists import release_of

    kept = release_of(name, pool)
    owner, _, short = name.partition("/")
    tell("\n".join([f"released {short} of {owner}", *map(str, kept)]))
    return 0


def replace(options: argparse.Namespace) -> int:
    """Put free nodes in the places of some."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    replaced = reservation.replace(*options.node, wait=options.wait or False, time=options.time, progress=say)
    tell("\n".join([*map(str, replaced), "the other ranks keep theirs; notebooks that are attached go on with these"]))
    return 0


def grow(options: argparse.Namespace) -> int:
    """Hold more nodes."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    mesh, wait = options.mesh or "", options.wait or False
    tell(reservation.grow(options.nodes, mesh=mesh, wait=wait, time=options.time, progress=say))
    return 0


def shrink(options: argparse.Namespace) -> int:
    """Give nodes back."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    tell(reservation.shrink(options.nodes, node=options.node, progress=say))
    return 0


def stop(options: argparse.Namespace) -> int:
    """End a mesh."""
    from monarch_nb import attach
    from monarch_nb.client.reservations.meshes import stopped_line

    reservation = attach(options.name, pool=options.pool)
    tell(stopped_line(reservation.name, options.mesh, reservation.stop_mesh(options.mesh)))
    return 0


def interrupt(options: argparse.Namespace) -> int:
    """Stop what runs, and drop what waits."""
    from monarch_nb import attach

    tell(attach(options.name, pool=options.pool).mesh.interrupt(kill_stuck=True))
    return 0


def restart(options: argparse.Namespace) -> int:
    """Put fresh ranks in the places of some."""
    from monarch_nb.client.reservations.meshes import restarted_line
    from monarch_nb.ground.rank_sets import name_ranks

    part, began_s = _part(options), time.monotonic()
    say(f"restarting {name_ranks(part.ranks)}")
    part.restart()
    tell(restarted_line(part, time.monotonic() - began_s))
    return 0


def stacks(options: argparse.Namespace) -> int:
    """Print where every rank is."""
    tell(_part(options).stacks())
    return 0


def _part(options: argparse.Namespace) -> Mesh:
    from monarch_nb import attach

    return part_of(attach(options.name, pool=options.pool), options.mesh, options.targets)
