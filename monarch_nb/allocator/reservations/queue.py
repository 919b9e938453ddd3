"""The queue of those who wait for slots of this node: first come, first served.

Nobody holds anything while he waits, so a client that dies only leaves the queue. Clients stand in the queues of all
nodes, with a ticket from the first one (monarch_nb.client.pools.line), so that all queues have the same order.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.allocator.runs.sessions import Session
    from monarch_nb.allocator.state.state import NodeState

MOST_WAITING = 1000


@dataclass(eq=False)
class _Waiting:
    """Somebody who waits.

    Attributes:
        ticket: when he came, by the clock of the node that gave it. By tickets queues are sorted.
        freed: slots may have come free that he does not know of: also those from before he came.
    """

    request: pb.WaitRequest
    ticket: float
    freed: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[float, str]:
        return self.ticket, self.request.wait_id


class Queue:
    """Who waits, for GPUs and for CPU slots. Clients that have such slots are told."""

    def __init__(self, state: NodeState, sessions: Iterable[Session]) -> None:
        self._state, self._sessions = state, sessions
        self._waiting: list[_Waiting] = []
        self._newest = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, request: pb.WaitRequest) -> AsyncGenerator[pb.WaitReply, None]:
        """Stand in the queue; yield the place, and yield again when that changes or slots come free.

        Raises:
            MonarchNbError: too many wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise MonarchNbError(f"{len(self._waiting)} clients wait in line already")
        # Clocks of nodes differ little; but whoever comes later came later, also when somebody sets the clock back.
        one = _Waiting(request, request.ticket or max(time.time(), math.nextafter(self._newest, math.inf)))
        if not request.ticket or one.ticket < time.time():  # else it is from the future
            self._newest = max(self._newest, one.ticket)
        self._waiting = sorted([*self._waiting, one], key=lambda each: each.key)
        self._look()
        self._tell_all()
        place = 0
        try:
            while True:
                one.changed.clear()
                if one.freed or self._place(one) != place:
                    place, freed, one.freed = self._place(one), one.freed, False
                    yield pb.WaitReply(place=place, freed=freed, ticket=one.ticket)
                await one.changed.wait()
        finally:
            self._waiting.remove(one)
            self._look()
            self._tell_all()

    def waiting(self, *, gpus: bool) -> list[pb.WaitRequest]:
        """Return who waits for GPUs, or for CPU slots, the first first."""
        return [one.request for one in self._waiting if bool(one.request.gpus) == gpus]

    def slots_are_free(self) -> None:
        """Slots were given back."""
        for one in self._waiting:
            one.freed = True
        self._look()

    def _look(self) -> None:
        """Tell everybody to look at his place."""
        for one in self._waiting:
            one.changed.set()

    def _place(self, one: _Waiting) -> int:
        alike = [other for other in self._waiting if bool(other.request.gpus) == bool(one.request.gpus)]
        return alike.index(one) + 1

    # ---- those who have slots ----

    def waiting_for(self, reservation_id: str) -> list[pb.WaitRequest]:
        """Return who waits for such slots as a reservation has, but for itself, which is to grow."""
        if (lease := self._state.leases.get(reservation_id)) is None:
            return []
        own = lease.request.name, lease.request.owner
        waiting = self.waiting(gpus=bool(lease.request.gpus))
        return [request for request in waiting if (request.name, request.owner) != own]

    def tell(self, session: Session, reservation_id: str) -> None:
        """Tell who has a reservation who waits for such slots."""
        waiting = self.waiting_for(reservation_id)
        session.send(urgent=False, in_line=pb.InLine(reservation_id=reservation_id, waiting=waiting))

    def _tell_all(self) -> None:
        for session in self._sessions:
            for reservation_id in session.attached & self._state.leases.keys():
                self.tell(session, reservation_id)
