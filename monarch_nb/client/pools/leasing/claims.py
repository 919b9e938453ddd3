"""One client at a time does something with a reservation, wherever clients are: a node sees to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import cadence
from monarch_nb.proto import allocator_pb2 as pb

SAY_S = cadence(1.0)
"""Who waits for so long is told why."""


class Claim:
    """A name of a reservation. Whoever has taken it is the only one, until it is given back or the process is gone. On
    the background loop.

    Args:
        node: the same for all who may want it.
    """

    def __init__(self, node: Connection, reservation_id: str, name: str) -> None:
        self._node, self._request = node, pb.ClaimRequest(reservation_id=reservation_id, name=name)
        self._call: AsyncGenerator[Any, None] | None = None

    async def take(self, say: Callable[[], None]) -> None:
        """Wait until nobody else has it.

        Args:
            say: called when that takes a while.

        Raises:
            NodeUnreachable: the node does not answer.
        """
        self._call = self._node.stream("Claim", self._request)
        granted = asyncio.ensure_future(anext(self._call))
        try:
            if not (await asyncio.wait({granted}, timeout=SAY_S))[0]:
                say()
            await granted
        except BaseException:
            granted.cancel()
            await asyncio.wait({granted})
            await self.give_back()
            raise

    async def give_back(self) -> None:
        """Let the next one have it."""
        if self._call is not None:
            await self._call.aclose()
