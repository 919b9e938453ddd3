"""Messages of this process to and from processes of one node: over a socket of their own, which is faster, when the
node is on this machine, else on the session there.

Senders of any thread queue; the background loop sends what is queued by then at once. Large content goes first: into
the node's directory, when this process sees that, else in a call of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monarch_nb.actor.engine.process import Process, deliver, map_and_remove
from monarch_nb.client.connections.bridge import background_loop, post
from monarch_nb.config import INLINE_VALUE_BYTES, gap, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.files.pieces import write_pieces
from monarch_nb.ground.flag import Flag
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Address, Envelope
from monarch_nb.rpc.frame_connection import FrameConnection, connect

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 64 << 20
"""So much may wait for a node that is away or does not read; who sends more waits as well."""
BATCH_BYTES = 1 << 20
GAP_S = gap(2.0)
"""So long messages wait for a node that is away: its allocator is being started again."""


class Node(Protocol):
    """What the mail needs of a connection."""

    name: str
    node_address: str
    up: bool

    @property
    def absence(self) -> str: ...

    def ensure_session(self) -> None: ...
    def opening(self, mailbox: str = "") -> pb.Open: ...
    async def put_blob(self, mesh_id: str, blob: str, pieces: Iterable[bytes | memoryview]) -> None: ...
    async def read_blob(self, mesh_id: str, blob: str) -> bytes: ...


_PROGRAM = uuid.uuid4().hex


def own_mailbox() -> str:
    """Return what this process is called on every node: in every thread the same. A forked one is another."""
    return f"client/{_PROGRAM}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class _Waiting:
    envelope: Envelope
    size_bytes: int
    content: list[bytes] | None = None
    """Large content that the node does not have yet."""


class ConnectionMail:
    """The mail of one connection.

    Args:
        node: the connection.
        request: puts a request on the session.
    """

    def __init__(self, node: Node, request: Callable[[pb.SessionRequest], None]) -> None:
        self._node, self._request = node, request
        self._receiver: Process | None = None
        self._directory: Path | None = None
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._room = Flag()
        self._room.set()
        self._flushes_soon = False
        self._is_listening = self._is_open = False
        self._socket_path = ""
        self._socket: FrameConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._replacing: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._arrived: deque[Envelope] = deque()
        self._fetching: asyncio.Task[None] | None = None

    def open(self, receiver: Process) -> None:
        """Take mail from now on. On the background loop, which calls the receiver."""
        if self._receiver is None:
            self._receiver = receiver
            self._node.ensure_session()
            if self._is_listening:
                self._open_mailbox()

    @property
    def is_taken(self) -> bool:
        """Whether somebody takes mail here."""
        return self._receiver is not None

    # ---- sending ----

    def send(
        self, processes: Sequence[str], pieces: Sequence[bytes | memoryview], *, call: int = 0, answers: int = 0
    ) -> None:
        """Send a packed message to processes of the node. From any thread; the pieces are used up or copied.

        Raises:
            MonarchNbError: so much waits already that the node must be away.
        """
        sender = Address(node=self._node.node_address, process=own_mailbox())
        envelope = Envelope(node=sender.node, processes=processes, sender=sender, call=call, answers=answers)
        size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
        content = None
        if size_bytes > INLINE_VALUE_BYTES:
            content = self._store(envelope, pieces)
        else:
            envelope.body = b"".join(pieces)
        self._wait_for_room()
        with self._lock:
            self._queue.append(_Waiting(envelope, size_bytes, content))
            self._queued_bytes += size_bytes
            if self._queued_bytes > MAX_QUEUED_BYTES:
                self._room.clear()
            if self._flushes_soon:
                return
            self._flushes_soon = True
        post(self._flush)

    def _store(self, envelope: Envelope, pieces: Sequence[bytes | memoryview]) -> list[bytes] | None:
        """Write large content where the node finds it; return it when it has to be carried there."""
        envelope.blob = uuid.uuid4().hex
        if self._directory is not None:
            try:
                write_pieces(self._directory / envelope.blob, pieces)
                return None
            except OSError as error:
                raise MonarchNbError(f"a large message for {self._node.name} can not be stored: {error}") from error
        return [bytes(piece) for piece in pieces]

    def _wait_for_room(self) -> None:
        """The background loop does not wait: it makes the room."""
        if self._room.is_set() or _is_on_background_loop():
            return
        if not self._room.wait(patience(30.0)):
            raise MonarchNbError(f"{self._queued_bytes >> 20} MB of messages wait for {self._node.name}, which is away")

    def _flush(self) -> None:
        with self._lock:
            self._flushes_soon = False
        if not self._is_open:
            asyncio.get_running_loop().call_later(GAP_S, self._give_up)
        elif self._sending is None:
            self._send_queued()

    def _send_queued(self) -> None:
        """Put what is queued on the session, up to the first large content that the node does not have."""
        while not (self._socket is not None and self._socket.is_full) and (batch := self._next_batch()):
            if batch[0].content is not None:
                self._sending = asyncio.get_running_loop().create_task(self._carry(batch[0]))
                return
            self._put([waiting.envelope for waiting in batch])

    def _put(self, envelopes: Sequence[Envelope]) -> None:
        if self._socket is not None:
            self._socket.send(*(envelope.SerializeToString() for envelope in envelopes))
        else:
            self._request(pb.SessionRequest(mail=pb.Envelopes(envelopes=envelopes)))

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size_bytes = 0
        with self._lock:
            while self._queue and size_bytes < BATCH_BYTES:
                if self._queue[0].content is not None and batch:
                    break
                batch.append(self._queue.popleft())
                size_bytes += batch[-1].size_bytes
                if batch[-1].content is not None:
                    break
            self._made_room(size_bytes)
        return batch

    def _made_room(self, size_bytes: int) -> None:
        self._queued_bytes -= size_bytes
        if self._queued_bytes <= MAX_QUEUED_BYTES:
            self._room.set()

    async def _carry(self, waiting: _Waiting) -> None:
        envelope = waiting.envelope
        try:
            await self._node.put_blob("", envelope.blob, waiting.content or [])
            self._put([envelope])
        except MonarchNbError as error:
            if self._receiver is not None:
                self._receiver.undelivered(envelope.call, list(envelope.processes), envelope.node, str(error), None)
        finally:
            self._sending = None
        if self._is_open:
            self._send_queued()

    # ---- the session ----

    def on_opened(self, opened: pb.Opened) -> None:
        """The node listens."""
        directory = Path(opened.mail_directory)
        sees = bool(opened.mail_directory) and (directory / f".{opened.token}").exists()
        self._directory = directory if sees else None
        self._socket_path = opened.mail_socket if sees else ""
        was_listening, self._is_listening = self._is_listening, True
        if self._receiver is not None and not was_listening:
            self._open_mailbox()

    def _open_mailbox(self) -> None:
        if self._socket_path:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._open_on_session()

    async def _connect(self) -> None:
        try:
            connection = await connect(Path(self._socket_path), self._on_frame, self._on_hung_up, self._on_room)
        except OSError:
            self._open_on_session()
            return
        connection.send(self._node.opening(own_mailbox()).SerializeToString())
        self._socket = connection
        self._begin()

    def _open_on_session(self) -> None:
        self._request(pb.SessionRequest(open=self._node.opening(own_mailbox())))
        self._begin()

    def _begin(self) -> None:
        self._is_open = True
        if self._sending is None:
            self._send_queued()

    def _on_frame(self, frame: bytes) -> None:
        self.on_mail([Envelope.FromString(frame)])

    def _on_room(self) -> None:
        if self._is_open and self._sending is None:
            self._send_queued()

    def _on_hung_up(self) -> None:
        """The socket broke: the session is about to, or else takes its place."""
        if self._socket is not None:
            self._socket, self._is_open = None, False
            self._replacing = asyncio.get_running_loop().call_later(GAP_S, self._replace_socket)

    def _replace_socket(self) -> None:
        self._break_off()
        self._open_on_session()

    def close(self) -> None:
        """Use the node no longer."""
        self._is_listening = False
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._replacing is not None:
            self._replacing.cancel()

    def on_lost(self) -> None:
        """The session broke: nobody knows what has arrived, and what was to come does not come."""
        self.close()
        self._break_off()

    def _break_off(self) -> None:
        self._is_open = False
        self._lose(
            f"{self._node.name}: the connection to it broke while the call waited: its allocator ended or was started "
            "again, or the network failed"
        )

    def _give_up(self) -> None:
        if not self._is_open and self._queue:
            self._lose(self._node.absence)

    def _lose(self, reason: str) -> None:
        with self._lock:
            kept = [waiting for waiting in self._queue if not waiting.envelope.call]
            self._made_room(sum(waiting.size_bytes for waiting in self._queue if waiting.envelope.call))
            self._queue = deque(kept)
        self._arrived.clear()
        if self._receiver is not None:
            self._receiver.node_lost(self._node.node_address, reason)

    # ---- receiving ----

    def on_mail(self, envelopes: Iterable[Envelope]) -> None:
        """Mail has come. What needs no fetching, and follows nothing that does, is delivered at once."""
        self._arrived.extend(envelopes)
        if self._fetching is None:
            self._deliver()

    def _deliver(self) -> None:
        while self._arrived and self._receiver is not None:
            envelope = self._arrived.popleft()
            if envelope.blob and self._directory is None:
                self._fetching = asyncio.get_running_loop().create_task(self._fetch(envelope, self._receiver))
                return
            try:
                content = map_and_remove(self._directory / envelope.blob) if envelope.blob and self._directory else None
                deliver(envelope, self._receiver, content)
            except Exception:  # noqa: BLE001 (whatever goes wrong with one message, the others must arrive)
                _log.exception("a message from %s is lost", envelope.sender.process)

    async def _fetch(self, envelope: Envelope, receiver: Process) -> None:
        try:
            content = bytearray(await self._node.read_blob("", envelope.blob))
            deliver(envelope, receiver, memoryview(content))
        except MonarchNbError as error:
            receiver.node_lost(
                self._node.node_address, f"{self._node.name}: a large message could not be fetched: {error}"
            )
        finally:
            self._fetching = None
        self._deliver()


def _is_on_background_loop() -> bool:
    try:
        return asyncio.get_running_loop() is background_loop()
    except RuntimeError:
        return False
