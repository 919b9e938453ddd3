"""What is tried again with other nodes: when others were faster on a node, or when it is not reached by the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from monarch_nb.client.pools.answering.reach import NotConnected
from monarch_nb.errors import CapacityError

T = TypeVar("T")
Attempt = Callable[[Collection[str]], Awaitable[T]]
"""Leases slots of nodes, but of those that are named; leaves nothing leased when it raises."""
MOST_RACES = 5
"""How often a reservation is tried when others lease first what was just free."""


class Outrun(Exception):
    """Somebody else has leased slots between our look and our lease."""


async def tried(attempt: Attempt[T], say: Callable[[str], None]) -> T:
    """Return what an attempt returns.

    Raises:
        CapacityError: not enough is free, or others were faster again and again.
        NotConnected: nodes do not reach each other, and no others are free.
    """
    avoided: dict[str, NotConnected] = {}
    while True:
        try:
            return await _raced(attempt, avoided)
        except NotConnected as error:
            if not error.worst:
                raise
            avoided[error.worst] = error
            say(f"without {error.worst}, as nodes do not reach each other")
        except CapacityError:
            if avoided:
                raise next(iter(avoided.values())) from None
            raise


async def _raced(attempt: Attempt[T], avoided: Collection[str]) -> T:
    outrun = ""
    for _ in range(MOST_RACES):
        try:
            return await attempt(avoided)
        except Outrun as error:
            outrun = str(error)
    raise CapacityError(f"other clients were faster {MOST_RACES} times; {outrun}", waiting_helps=True)
