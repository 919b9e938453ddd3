"""Connections of frames over Unix sockets."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from monarch_nb.ground.frames import FrameSplitter, encode_frame


class FrameConnection(asyncio.BufferedProtocol):
    """A Unix-socket connection of frames with the least latency asyncio has: no streams, no tasks.

    Args:
        on_frame: called with each frame that comes.
        on_lost: called when the connection has ended, however it did.
        on_room: called when the other side has read what waited, after `is_full`.

    Attributes:
        is_full: the other side does not read: what is sent waits in memory.
    """

    _buffer: ClassVar = memoryview(bytearray(256 << 10))
    """One for all: what is in it is used up before the loop reads from another socket. A plain asyncio.Protocol
    allocates as much anew for every read, which costs more than the read."""

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_frame, self._on_lost, self._on_room = on_frame, on_lost, on_room
        self.is_full = False
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._splitter.feed(self._buffer[:nbytes]):
            self._on_frame(frame)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._on_room()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    @property
    def is_open(self) -> bool:
        """Whether it is not lost."""
        return self._transport is not None

    def send(self, *payloads: bytes) -> bool:
        """Queue frames; False when the connection is lost."""
        if self._transport is None:
            return False
        self._transport.write(b"".join(map(encode_frame, payloads)))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


_OWN_TROUBLE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})
"""Nothing of it says whether anybody listens. EAGAIN: more wait to be accepted than fit."""


def may_listen(error: OSError) -> bool:
    """Whether somebody may listen where `connect` failed: this process has no descriptors left, say."""
    return error.errno in _OWN_TROUBLE


async def connect(
    path: Path,
    on_frame: Callable[[bytes], None],
    on_lost: Callable[[], None],
    on_room: Callable[[], None] = lambda: None,
) -> FrameConnection:
    """Connect to a listening Unix socket."""
    _, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: FrameConnection(on_frame, on_lost, on_room), str(path)
    )
    return connection
