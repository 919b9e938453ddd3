"""The connection to a rank on which its mail travels."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

from monarch_nb.config import cadence
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.frame_connection import FrameConnection, connect, may_listen

RECONNECT_DELAY_S = cadence(0.5)


class MailLink:
    """Frames to a rank wait, in their order, until it has said that it is ready for them: it may be busy, or have the
    mail of an allocator before this one to read.

    Args:
        path: where it listens.
        on_mail: called with frames that it sends.

    Attributes:
        sent_s: when a frame was sent last, on the monotonic clock.
    """

    def __init__(self, path: Path, on_mail: Callable[[bytes], None]) -> None:
        self._path, self._on_mail = path, on_mail
        self.sent_s = -math.inf
        self._loop = asyncio.get_running_loop()
        self._connection: FrameConnection | None = None
        self._is_ready = self._is_closed = self._writes_soon = False
        self._waiting: list[bytes] = []
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there, or it can not be found out (`may_listen`).
        """
        connection = await connect(self._path, self._on_frame, self._on_lost)
        if self._is_closed:
            connection.close()
            return
        self._connection = connection
        hello = wire.ToRank(hello=wire.Hello(channel=wire.Hello.CHANNEL_MAIL))
        connection.send(hello.SerializeToString())

    def _on_frame(self, frame: bytes) -> None:
        if frame:
            self._on_mail(frame)
        else:
            self._is_ready = True
            self._write()

    def _on_lost(self) -> None:
        """The rank's end is learnt from its pidfd, not here. One that lives has read what it was sent."""
        self._connection, self._is_ready = None, False
        if not self._is_closed:
            self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while self._connection is None:
            await asyncio.sleep(RECONNECT_DELAY_S)  # it may hang up again at once
            try:
                await self.open()
            except OSError as error:
                if not may_listen(error):
                    return

    def send(self, frame: bytes) -> None:
        """Send a frame soon, with what else is sent in this turn of the loop."""
        self._waiting.append(frame)
        self.sent_s = time.monotonic()
        if self._is_ready and not self._writes_soon:
            self._writes_soon = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes_soon = False
        if self._is_ready and self._waiting and self._connection is not None:
            self._connection.send(*self._waiting)
            self._waiting = []

    def close(self) -> None:
        """Send nothing any more, and do not connect again."""
        self._is_closed = True
        self._waiting = []
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._connection is not None:
            self._connection.close()
