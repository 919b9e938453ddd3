"""Where clients of this machine come for mail: a round trip takes two thirds of the time that it takes on a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from monarch_nb.allocator.mail.letters import Letter
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.frame_connection import FrameConnection

_log = logging.getLogger(__name__)


class Sorter(Protocol):
    """What the door needs of the mail."""

    def open_mailbox(self, mailbox: str, line: object, send: Callable[[Sequence[Letter]], object]) -> None: ...
    def close_mailbox(self, line: object) -> None: ...
    def accept_frame(self, frame: bytes) -> None: ...


class Door:
    """Listens.

    Args:
        path: of the socket.
        mail: gets what is sent.
    """

    def __init__(self, path: Path, mail: Sorter) -> None:
        self._path, self._mail = path, mail
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Let clients in."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Visit(self._mail).connection, str(self._path))

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()


class _Visit:
    """A client's connection: its first frame says who it is."""

    def __init__(self, mail: Sorter) -> None:
        self._mail = mail
        self._is_known = False
        self.connection = FrameConnection(self._on_frame, self._on_lost)

    def _on_frame(self, frame: bytes) -> None:
        try:
            if self._is_known:
                self._mail.accept_frame(frame)
            else:
                self._is_known = True
                self._mail.open_mailbox(pb.Open.FromString(frame).mailbox, self, self._send)
        except DecodeError:
            _log.warning("a client sent bytes that are no message")
            self.connection.close()

    def _send(self, letters: Sequence[Letter]) -> None:
        self.connection.send(*(letter.encoded for letter in letters))

    def _on_lost(self) -> None:
        self._mail.close_mailbox(self)
