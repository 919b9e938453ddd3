"""A room's end of the connections that its gateway makes: one for each session, and those for the room's own calls of
other nodes, because it has no certificate.

The gateway connects to the room, never the other way round: so it knows whose room it is, and nobody else can listen in
its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from monarch_nb.rpc.channel import open_channel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.allocator.gateway.frames import OFFERED, SESSION, Frames
from monarch_nb.allocator.gateway.outgoing import Toward
from monarch_nb.allocator.gateway.pipe import Pipe
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.callers import metadata_of_caller

_log = logging.getLogger(__name__)

MOST_WAITING = 128
"""Of connections: all clients open their sessions again at once when this allocator was started again."""
MOST_UNREAD_BYTES = 1 << 20
"""Of a session: then what happens waits with the other events of it."""

Serve = Callable[[AsyncIterator[bytes], Any], Coroutine[Any, Any, None]]
"""Answers a session: what its client says, in bytes, and the call as gRPC would tell of it."""


class WayOut:
    """Joins the room's own connections to those that its gateway offers.

    Args:
        paths: of the room.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._offered_at = paths.gateway_socket
        self._offered: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._pipe = Pipe(paths.way_out_socket, self._next)
        self._tasks: set[asyncio.Task[None]] = set()

    def open_channel(self, address: str) -> Toward:
        """Return a channel to another node."""
        return Toward(open_channel(f"unix:{self._pipe.path}"), address)

    async def listen(self, serve: Serve) -> None:
        """Begin. Args: serve: answers sessions."""
        self._offered_at.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        server.bind(str(self._offered_at))
        server.listen(MOST_WAITING)
        self._do(self._accept(server, serve))
        await self._pipe.listen()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, server: socket.socket, serve: Serve) -> None:
        try:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(server)
                self._do(self._take(connection, serve))
        finally:
            server.close()

    async def _take(self, connection: socket.socket, serve: Serve) -> None:
        """Do with a connection what the gateway has made it for."""
        connection.setblocking(False)
        try:
            purpose = await asyncio.get_running_loop().sock_recv(connection, 1)
        except BaseException:
            connection.close()
            raise
        if purpose == OFFERED:
            self._offered.put_nowait(connection)
        elif purpose == SESSION:
            await _answer(connection, serve)
        else:
            connection.close()

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

    async def end_sessions(self) -> None:
        """End them, and begin none any more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """End, with all connections."""
        self._pipe.close()
        while not self._offered.empty():
            self._offered.get_nowait().close()


class _Call:
    """A session as gRPC would tell of it."""

    def __init__(self, frames: Frames, told: bytes) -> None:
        self._frames, self._told = frames, told

    def peer(self) -> str:
        return "unix:"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return metadata_of_caller(self._told)

    async def write(self, events: pb.SessionEvents) -> None:
        await self._frames.room()
        self._frames.send(events.SerializeToString())

    async def abort(self, *why: Any) -> None:
        """The gateway opens a session for whom it may: it is not told why, but that the session has ended."""
        _log.warning("a session is refused: %s", why)
        raise grpc.aio.AbortError


async def _answer(connection: socket.socket, serve: Serve) -> None:
    frames = Frames(MOST_UNREAD_BYTES)
    await frames.open(connection)
    try:
        with contextlib.suppress(grpc.aio.AbortError, StopAsyncIteration):
            call = _Call(frames, await anext(frames))
            await serve(frames, call)
    finally:
        frames.finish()
