"""Messages between a gateway and a room on a connection of their own. In frames a message costs a fraction of what it
costs in gRPC, and every cell is one in each direction."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from monarch_nb.rpc.frame_connection import FrameConnection

OFFERED, SESSION = b"o", b"s"
"""The first byte of a connection from a gateway to a room: one that the room may use, or a session."""
MOST_COME_BYTES = 1 << 20
"""More is not read before what has come is taken."""


class Frames:
    """One end of such a connection. What is sent before it is open waits. What nobody takes here is not read.

    Args:
        most_unread_bytes: so much may wait for the other end before this one is full.
    """

    def __init__(self, most_unread_bytes: int) -> None:
        self._connection = FrameConnection(self._on_frame, self._on_lost, self._on_room)
        self._most_unread_bytes = most_unread_bytes
        self._early: list[bytes] | None = []
        self._early_bytes = 0
        self._come: deque[bytes] = deque()
        self._come_bytes, self._is_lost = 0, False
        self._something_came, self._has_room = asyncio.Event(), asyncio.Event()

    async def open(self, connection: socket.socket, *first: bytes) -> None:
        """Begin. Args: first: frames that go before those that wait."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._connection, sock=connection)
        self._connection.limit(self._most_unread_bytes)
        self._connection.send(*first, *(self._early or ()))
        self._early, self._early_bytes = None, 0
        self._has_room.set()

    def limit(self, most_unread_bytes: int) -> None:
        """Let so much wait from now on."""
        self._most_unread_bytes = most_unread_bytes
        self._connection.limit(most_unread_bytes)

    def send(self, frame: bytes) -> None:
        """Send a frame; one to an end that is gone is dropped."""
        if self._early is None:
            self._connection.send(frame)
        else:
            self._early.append(frame)
            self._early_bytes += len(frame)

    async def room(self) -> None:
        """Wait until the other end has read, if much waits for it."""
        while not self._is_lost and (self._connection.is_full or self._early_bytes > self._most_unread_bytes):
            self._has_room.clear()
            await self._has_room.wait()

    def __aiter__(self) -> Frames:
        return self

    async def __anext__(self) -> bytes:
        while not self._come:
            if self._is_lost:
                raise StopAsyncIteration
            self._something_came.clear()
            await self._something_came.wait()
        frame = self._come.popleft()
        self._come_bytes -= len(frame)
        if self._come_bytes <= MOST_COME_BYTES:
            self._connection.read_on(True)
        return frame

    def finish(self) -> None:
        """End when the other end has read what waits for it."""
        self._connection.finish()

    def close(self) -> None:
        """End now."""
        self._connection.close()

    def _on_frame(self, frame: bytes) -> None:
        self._come.append(frame)
        self._come_bytes += len(frame)
        if self._come_bytes > MOST_COME_BYTES:
            self._connection.read_on(False)
        self._something_came.set()

    def _on_room(self) -> None:
        self._has_room.set()

    def _on_lost(self) -> None:
        self._is_lost = True
        self._something_came.set()
        self._has_room.set()
