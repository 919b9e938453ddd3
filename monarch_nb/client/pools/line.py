"""Waiting for slots that others hold: this client's place in the line, and its turn.

Each node has a line (monarch_nb.allocator.reservations.queue), and a client stands in all of them while it waits, with
a ticket that the pool's first node has given it, or the next one when that is away. A node that comes back may not know
all who wait yet, so the place is the last one that any node tells: who has the lowest ticket is the first everywhere.
Only the first tries to reserve, when some node says that slots came free, or, where no node can know of it
(a node is there again, a program has left a GPU), now and then. Nothing is leased meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.choosing import Shape, who_holds
from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.pools.pool import Pool, Progress, in_order
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb

LOOK_EVERY_S = cadence(10.0)


class Line:
    """A client's place among those who wait for slots of a pool. Use it on the background loop.

    Args:
        name: of the reservation that is to be.
        longest_s: how long to wait; None for as long as it takes.
        say: told the place.
    """

    def __init__(self, pool: Pool, name: str, shape: Shape, longest_s: float | None, say: Progress) -> None:
        self._pool, self._shape, self._say = pool, shape, say
        self._request = pb.WaitRequest(
            name=name,
            owner=current_owner(),
            nodes=shape.nodes,
            procs=shape.procs,
            gpus=shape.gpus,
            wait_id=uuid.uuid4().hex,
        )
        self._ends_s = None if longest_s is None else time.monotonic() + longest_s
        self._streams: dict[Connection, asyncio.Task[None]] = {}
        self._away: set[Connection] = set()
        self._places: dict[Connection, int] = {}
        self._changed = asyncio.Event()
        self._may_be_free = False
        self._error: MonarchNbError | None = None
        self._said = ""

    @property
    def place(self) -> int:
        """1 is the first; also when no node says."""
        return max(self._places.values(), default=1)

    async def turn(self) -> None:
        """Return when this client is the first and slots may have come free.

        Raises:
            TimeoutError: it has waited as long as it may.
            AccessDenied: it may not wait there.
        """
        while True:
            await self._join()
            is_news = await self._change()
            if self._error:
                raise self._error
            await self._tell()
            if is_news and not self._places:
                continue  # the node that gave the ticket is gone, and no other has said yet who is before this one
            if self.place == 1 and self._may_be_free:
                self._may_be_free = False
                return

    def leave(self) -> None:
        """Wait no more."""
        for stream in self._streams.values():
            stream.cancel()

    async def _change(self) -> bool:
        """Wait for news, or until it is time to look; return whether there is some."""
        now_s = time.monotonic()
        left_s = LOOK_EVERY_S if self._ends_s is None else min(LOOK_EVERY_S, self._ends_s - now_s)
        if left_s <= 0:
            raise TimeoutError
        try:
            async with asyncio.timeout(left_s):
                await self._changed.wait()
        except TimeoutError:
            self._may_be_free = True
            self._away.clear()
        is_news = self._changed.is_set()
        self._changed.clear()
        return is_news

    async def _join(self) -> None:
        """Stand in the lines of all nodes, also of those that are there again: at first in that of the first node."""
        for connection in in_order(await self._pool.discover()):
            if not self._request.ticket and connection in self._away:
                continue
            if connection not in self._streams:
                self._streams[connection] = asyncio.create_task(self._stand(connection))
            if not self._request.ticket:
                return

    async def _stand(self, connection: Connection) -> None:
        try:
            async with contextlib.aclosing(connection.stream("Wait", self._request)) as replies:
                async for reply in replies:
                    self._away.discard(connection)
                    self._request.ticket = reply.ticket
                    self._places[connection] = reply.place
                    self._may_be_free |= reply.freed
                    self._changed.set()
        except NodeUnreachable:  # the next look tries again
            self._away.add(connection)
            if not self._request.ticket:
                self._changed.set()
        except MonarchNbError as error:
            self._error = error
            self._changed.set()
        finally:
            del self._streams[connection]
            if self._places.pop(connection, None):
                self._changed.set()

    async def _tell(self) -> None:
        """Say the place, and who holds what, when that is news."""
        try:
            told = await self._pool.ask()
            own = self._request.name, current_owner(told[0][0].identity)
            held = who_holds(self._shape, [reply.node for _, reply in told], own)
        except MonarchNbError as error:
            held = str(error)
        said = f"{_ordinal(self.place)} in line: {held}" if held else f"{_ordinal(self.place)} in line"
        if said != self._said:
            self._said = said
            self._say(said)


def _ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "4th", "11th", "22nd".

    Example:
        >>> [_ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111)]
        ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '22nd', '111th']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
