"""Taking what is asked for: what is held under that name already, or what is free, or will be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.answering.silence import all_away
from monarch_nb.client.pools.facts.conflicts import Asked, check_same
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.facts.missing import not_whole
from monarch_nb.client.pools.leasing.releasing import release
from monarch_nb.client.pools.pool import Pool, Progress, SpawnOptions, Terms
from monarch_nb.client.presenting import where_here
from monarch_nb.client.reservations.reserving.waiting import in_line, with_room
from monarch_nb.trust.identity import expiry_warning


def taken(
    chosen: Pool,
    name: str,
    asked: Asked,
    options: SpawnOptions,
    terms: Terms,
    replace: bool,
    waits: bool,
    longest_s: float | None,
    held_here: Mapping[str, Sequence[Connection]],
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one; `waits` for what others hold.

    Args:
        held_here: the nodes of those of that name that this process uses, by id.
    """
    chosen.revive(say)
    if chosen.identity and (warning := expiry_warning(chosen.identity)):
        say(warning)

    def take() -> tuple[HeldReservation, bool]:
        taken = call(_reserve(chosen, name, asked, options, terms, replace, held_here, say), undo=give_back)
        if chosen.namesakes:
            say(chosen.namesakes)
        return taken

    if not waits:
        return with_room(chosen, asked.shape, say, take)
    return in_line(chosen, name, asked.shape, longest_s, say, take)


async def _reserve(
    pool: Pool,
    name: str,
    asked: Asked,
    options: SpawnOptions,
    terms: Terms,
    replace: bool,
    held_here: Mapping[str, Sequence[Connection]],
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one."""
    held = await pool.find(name, say)
    if held is not None:
        replace = replace or pool.end_of(held.reservation_id) is not None  # one node's time is up before another's
        if not replace:
            check_same(held, asked)
            if held.complete:
                return held, False
            if held.missing:
                raise await asyncio.to_thread(not_whole, held, pool.name)
        if held.complete or replace:
            say(f"releasing {name}")
        released = await release(held.connections.values(), held.reservation_id, by=where_here())
        for leftover in released.leftovers:
            say(str(leftover))
    elif pool.silent:
        await _let_go_of_lost(pool, name, replace, held_here, say)
    return await pool.reserve(name, asked.shape, options, terms, say), True


async def _let_go_of_lost(
    pool: Pool, name: str, replace: bool, held_here: Mapping[str, Sequence[Connection]], say: Progress
) -> None:
    """See to it that there are not two of a name when nodes come back that do not answer now.

    Raises:
        NodeUnreachable: this process knows that they hold it, and nobody wants to replace it.
    """
    for reservation_id, nodes in held_here.items():
        if not (away := pool.away(reservation_id)) or pool.end_of(reservation_id) is not None:
            continue
        if not replace:
            raise all_away(name, away)
        for leftover in (await release(nodes, reservation_id, by=where_here())).leftovers:
            say(str(leftover))
    if replace and not held_here:
        await pool.late_releases.add(name=name, by=where_here())


async def give_back(reserved: tuple[HeldReservation, bool]) -> None:
    """Release what was reserved for somebody who has pressed Ctrl-C."""
    held, is_new = reserved
    if is_new:
        await release(held.connections.values(), held.reservation_id)
