"""Taking what is asked for: what is held under that name already, or what is free, or will be."""

from __future__ import annotations

import asyncio

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.conflicts import Asked, check_same
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.pool import Pool, Progress, SpawnOptions, Terms, not_whole
from monarch_nb.client.pools.releasing import release
from monarch_nb.client.reservations.waiting import in_line, with_room
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
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one; `waits` for what others hold."""
    chosen.revive(say)
    if chosen.identity and (warning := expiry_warning(chosen.identity)):
        say(warning)

    def take() -> tuple[HeldReservation, bool]:
        taken = call(_reserve(chosen, name, asked, options, terms, replace, say), undo=give_back)
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
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one."""
    held = await pool.find(name, say)
    if held is not None:
        if not replace:
            check_same(held, asked)
            if held.complete:
                return held, False
            if held.missing:
                raise await asyncio.to_thread(not_whole, held, pool.name)
        if held.complete or replace:
            say(f"releasing {name}")
        released = await release(held.connections.values(), held.reservation_id)
        for leftover in released.leftovers:
            say(str(leftover))
    return await pool.reserve(name, asked.shape, options, terms, say), True


async def give_back(reserved: tuple[HeldReservation, bool]) -> None:
    """Release what was reserved for somebody who has pressed Ctrl-C."""
    held, is_new = reserved
    if is_new:
        await release(held.connections.values(), held.reservation_id)
