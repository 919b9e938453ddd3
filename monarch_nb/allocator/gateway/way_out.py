"""A room's way to other nodes. It has no certificate, so its gateway calls them for it.

The gateway connects to the room, never the other way round: so it knows whose room it is, and nobody else can listen in
its place.
"""

from __future__ import annotations

import asyncio
import socket

from monarch_nb.rpc.channel import open_channel  # isort: skip  (sets gRPC's environment before grpc is imported)

from monarch_nb.allocator.gateway.outgoing import Toward
from monarch_nb.allocator.gateway.pipe import Pipe
from monarch_nb.config import NodePaths

MOST_WAITING = 8
"""Of connections that the gateway has offered: it offers one at a time."""


class WayOut:
    """Joins the room's own connections to those that its gateway offers.

    Args:
        paths: of the room.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._offered_at = paths.gateway_socket
        self._offered: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._pipe = Pipe(paths.way_out_socket, self._next)
        self._tasks: list[asyncio.Task[None]] = []

    def open_channel(self, address: str) -> Toward:
        """Return a channel to another node."""
        return Toward(open_channel(f"unix:{self._pipe.path}"), address)

    async def listen(self) -> None:
        """Begin."""
        self._offered_at.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        server.bind(str(self._offered_at))
        server.listen(MOST_WAITING)
        self._tasks.append(asyncio.create_task(self._accept(server)))
        await self._pipe.listen()

    async def _accept(self, server: socket.socket) -> None:
        try:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(server)
                self._offered.put_nowait(connection)
        finally:
            server.close()

    async def _next(self) -> socket.socket:
        """Return a connection that the gateway holds still: an earlier gateway's are closed."""
        while True:
            connection = await self._offered.get()
            try:
                connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # it says nothing first
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()

    def close(self) -> None:
        """End, with all connections."""
        for task in self._tasks:
            task.cancel()
        self._pipe.close()
        while not self._offered.empty():
            self._offered.get_nowait().close()
