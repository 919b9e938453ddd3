"""A socket of the gateway's own on which gRPC reaches a room. gRPC connects to paths only, and the gateway may not
enter a room's directory. So each connection goes on through one that the room's starter opens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from monarch_nb.errors import MonarchNbError

_log = logging.getLogger(__name__)


class Pipe:
    """Listens, and carries what comes on.

    Args:
        path: to listen on, in a directory that nobody else can enter.
        connect: opens a connection to the room.
    """

    def __init__(self, path: Path, connect: Callable[[], Awaitable[socket.socket]]) -> None:
        self.path, self._connect = path, connect
        self._server: asyncio.Server | None = None
        self._open: set[_End] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Begin."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _End(self), str(self.path))

    def accepted(self, end: _End) -> None:
        """A connection was made: connect to the room, too."""
        self._open.add(end)
        task = asyncio.ensure_future(self._go_on(end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, end: _End) -> None:
        try:
            connection = await self._connect()
            connection.setblocking(False)
            far = _End(self)
            await asyncio.get_running_loop().create_unix_connection(lambda: far, sock=connection)
        except (OSError, MonarchNbError) as error:  # gRPC tries again
            _log.info("a room can not be reached: %s", error)
            end.close()
            return
        self._open.add(far)
        end.join(far)

    @property
    def ends(self) -> int:
        """How many ends of connections are open."""
        return len(self._open)

    async def carry(self, one: socket.socket, other: socket.socket) -> None:
        """Join two connections."""
        loop, ends = asyncio.get_running_loop(), (_End(self), _End(self))
        self._open.update(ends)
        for end, connection in zip(ends, (one, other), strict=True):
            connection.setblocking(False)
            await loop.create_unix_connection(lambda end=end: end, sock=connection)  # type: ignore[misc]
        ends[0].join(ends[1])

    def closed(self, end: _End) -> None:
        self._open.discard(end)

    def close(self) -> None:
        """End, with all connections."""
        if self._server is not None:
            self._server.close()
        for end in list(self._open):
            end.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class _End(asyncio.Protocol):
    """One end of a connection. What the other end does not take, this one does not read."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._transport: asyncio.Transport | None = None
        self._other: _End | None = None
        self._waiting: list[bytes] = []
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if transport.get_extra_info("socket").getsockname() == str(self._pipe.path):
            self._pipe.accepted(self)

    def join(self, other: _End) -> None:
        """Carry everything to another end from now on, and back."""
        self._other, other._other = other, self
        for near, far in ((self, other), (other, self)):
            for data in near._waiting:
                far.write(data)
            near._waiting.clear()
        if self._is_closed or other._is_closed:
            self.close()
            other.close()

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._waiting.append(data)
        else:
            self._other.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_closed = True
        self._pipe.closed(self)
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
