"""The line of those who wait for slots of this node. Its order is fair between people: who holds more waits longer (see
monarch_nb.allocator.state.turns).

Nobody holds anything while he waits, so a client that dies only leaves the line. Clients stand in the lines of all
nodes, with a ticket from the first one (monarch_nb.client.pools.line), so that all lines have the same order. The node
that has given a ticket gives another one when its person holds more or less than before, and the client brings that to
the other nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from monarch_nb.allocator.state.turns import Waiter, tickets
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb

MOST_WAITING = 1000
LOOK_EVERY_S = cadence(10.0)
"""How often the other nodes are asked what people hold, while somebody waits."""


class Held(Protocol):
    """Knows what people hold of the pool."""

    async def look_at_pool(self) -> None: ...
    def slots(self, *, gpus: bool) -> tuple[Mapping[str, int], int]: ...


@dataclass(eq=False)
class _Waiting:
    """Somebody who waits.

    Attributes:
        came: when; of a ticket that another node has given, the ticket.
        is_given_here: whether this node gives his tickets.
        ticket: by which lines are sorted. told: the one that he knows.
        freed: slots may have come free that he does not know of: also those from before he came.
    """

    request: pb.WaitRequest
    number: int
    came: float
    is_given_here: bool
    ticket: float
    told: float = 0.0
    freed: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[float, str]:
        return self.ticket, self.request.wait_id

    @property
    def waiter(self) -> Waiter:
        request = self.request
        return Waiter(str(self.number), request.owner, request.nodes * (request.gpus or request.procs), self.came)


class Line:
    """Who waits, for GPUs and for CPU slots.

    Args:
        on_change: called when others wait than before.
        held: knows what people hold; None: nobody holds anything.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None, held: Held | None = None) -> None:
        self._on_change, self._held = on_change, held
        self._waiting: list[_Waiting] = []
        self._newest = 0.0
        self._numbers = itertools.count()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, request: pb.WaitRequest) -> AsyncGenerator[pb.WaitReply, None]:
        """Stand in the line; yield the place, and yield again when that changes or slots come free.

        Raises:
            MonarchNbError: too many wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise MonarchNbError(f"{len(self._waiting)} clients wait in line already")
        came = request.ticket or self._next()
        is_sound = not request.ticket or came < time.time()
        self._newest = max(self._newest, came if is_sound else 0.0)
        one = _Waiting(request, next(self._numbers), came, not request.ticket, came)
        self._waiting.append(one)
        self._looking = self._looking or asyncio.create_task(self._look())
        self._order()
        self._on_change()
        place = 0
        try:
            while True:
                one.changed.clear()
                if one.freed or one.told != one.ticket or self._place(one) != place:
                    place = self._place(one)
                    freed, one.freed, one.told = one.freed, False, one.ticket
                    yield pb.WaitReply(place=place, freed=freed, ticket=one.ticket)
                await one.changed.wait()
        finally:
            self._waiting.remove(one)
            if not self._waiting and self._looking is not None:
                self._looking.cancel()
                self._looking = None
            self._order()
            self._on_change()

    def waiting(self, *, gpus: bool) -> list[pb.WaitRequest]:
        """Return who waits for GPUs, or for CPU slots, the first first."""
        return [one.request for one in self._waiting if bool(one.request.gpus) == gpus]

    def slots_are_free(self) -> None:
        """Slots were given back."""
        for one in self._waiting:
            one.freed = True
        self._order_anew()

    def _next(self) -> float:
        """Return the time, which differs little between nodes; but whoever comes later came later, also when somebody
        sets the clock back."""
        return max(time.time(), math.nextafter(self._newest, math.inf))

    async def _look(self) -> None:
        while self._held is not None:
            if any(one.is_given_here for one in self._waiting):
                await self._held.look_at_pool()
                self._order_anew()
            await asyncio.sleep(LOOK_EVERY_S)

    def _order_anew(self) -> None:
        """People may hold more or less than before."""
        before = [one.number for one in self._waiting]
        self._order()
        if [one.number for one in self._waiting] != before:
            self._on_change()

    def _order(self) -> None:
        """Give tickets by what people hold now, and tell everybody to look at his place."""
        for gpus in (False, True):
            alike = [one for one in self._waiting if bool(one.request.gpus) == gpus]
            held, slots = self._held.slots(gpus=gpus) if alike and self._held is not None else ({}, 0)
            given = tickets((one.waiter for one in alike), held, slots)
            for one in alike:
                one.ticket = given[str(one.number)] if one.is_given_here else one.ticket
        self._waiting.sort(key=lambda one: one.key)
        for one in self._waiting:
            one.changed.set()

    def _place(self, one: _Waiting) -> int:
        alike = [other for other in self._waiting if bool(other.request.gpus) == bool(one.request.gpus)]
        return alike.index(one) + 1
