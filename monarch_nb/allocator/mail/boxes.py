"""What delivers letters to a process of this node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from monarch_nb.allocator.mail.blobs import Blobs
from monarch_nb.allocator.mail.letters import Letter
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.proto import allocator_pb2 as pb


class RankBox:
    """Delivers to a rank: small letters as the bytes that came, large ones with a link to their content.

    Args:
        mesh_id, rank: whose blobs they are.
        send: takes frames.
    """

    def __init__(self, mesh_id: str, rank: int, send: Callable[[bytes], None], blobs: Blobs) -> None:
        self._mesh_id, self._rank, self._send, self._blobs = mesh_id, rank, send, blobs

    def put(self, letter: Letter) -> None:
        """Send it."""
        if letter.blob is None:
            self._send(letter.encoded)
        else:
            name = self._blobs.give(letter.blob, self._mesh_id, self._rank)
            self._send(letter.naming(name).SerializeToString())


class ClientBox:
    """Delivers to a client what comes in one turn of the loop at once.

    Args:
        line: what ends when the client does not read any more: its session, or its connection for mail.
        send: takes letters.
    """

    def __init__(self, line: object, send: Callable[[Sequence[Letter]], object], blobs: Blobs) -> None:
        self.line, self._send_letters, self._blobs = line, send, blobs
        self._gathered: list[Letter] = []
        self._lent: list[str] = []

    def put(self, letter: Letter) -> None:
        """Send it soon."""
        if letter.blob is not None:
            self._lent.append(self._blobs.lend(letter.blob))
            letter = Letter(letter.naming(self._lent[-1]))
        self._gathered.append(letter)
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._send_letters(gathered)

    def close(self) -> None:
        """The line is cut: what the client has not read is not read any more."""
        for name in self._lent:
            with contextlib.suppress(FileNotFoundError):
                self._blobs.path(name).unlink()


def on_session(session: Session) -> Callable[[Sequence[Letter]], None]:
    """Return what sends letters on a client's session."""

    def send(letters: Sequence[Letter]) -> None:
        session.send(mail=pb.Envelopes(envelopes=[letter.envelope for letter in letters]))

    return send
