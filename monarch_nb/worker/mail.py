"""Mail of a rank: what its actors have around them (RankOutside), the connection to its allocator (Post), and large
content, in files that are passed on by name (MailBlobs).

Whoever sends writes to the connection itself, so that no other thread has to wake up; only what the allocator does not
take at once is left to the mail thread, which exists from the first mail on. When the allocator ends, nobody knows what
of that which was under way has arrived: all calls have failed then, and are not sent any more. Everything else waits
for the next allocator.
"""

from __future__ import annotations

import concurrent.futures
import mmap
import os
import select
import socket
import sys
import threading
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from google.protobuf.message import DecodeError

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.handles import Places
from monarch_nb.actor.engine.outside import Address, Execution, Runs, Tag
from monarch_nb.actor.engine.process import Process, deliver, map_and_remove
from monarch_nb.actor.hosts import spawn_procs_here, stop_procs_here
from monarch_nb.config import INLINE_VALUE_BYTES, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.files.pieces import write_pieces
from monarch_nb.ground.frames import FrameError, FrameSplitter, encode_frame
from monarch_nb.proto import mail_pb2
from monarch_nb.proto.mail_pb2 import Envelope

SENT = "sent"


class MailBlobs:
    """The blobs of one rank.

    Args:
        directory: of the mesh, on this node. It is made when first needed.
        rank: its files are those whose names begin with it.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory, self._rank = directory, rank

    def write(self, pieces: Sequence[bytes | memoryview]) -> str:
        """Write content that is to be sent; return its name.

        Raises:
            OSError: it can not be written; nothing is left behind.
        """
        name = f"{self._rank}-{SENT}-{uuid.uuid4().hex}"
        self._directory.mkdir(mode=0o700, exist_ok=True)
        write_pieces(self._directory / name, pieces)
        return name

    def take(self, name: str) -> mmap.mmap:
        """Map content that was received, privately; its file is gone from here on.

        Raises:
            OSError: it is not there.
        """
        return map_and_remove(self._directory / name)

    def remove(self, name: str) -> None:
        """Content will not be sent."""
        (self._directory / name).unlink(missing_ok=True)

    def remove_others(self, kept: set[str]) -> None:
        """Remove all files of this rank but `kept`: an allocator that ended has left them."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(f"{self._rank}-") and name not in kept:
                self.remove(name)


MAX_QUEUED_BYTES = 64 << 20
"""So much may wait for an allocator that is away or does not read; who sends more waits as well."""
ROOM_WAIT_S = patience(30.0)
_WRITE_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 18
_RESTARTED = "the allocator of its own node ended while the call waited"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A frame to be sent, and what must be known of it when it is not."""

    frame: bytes
    is_call: bool
    blob: str


class Post:
    """Sends and receives the mail of a rank.

    Args:
        node, process: its address.
        blobs: its large content.
        find_receiver: called once, when the first mail has come.
        forget_socket: called with a connection that is about to be closed.
    """

    def __init__(
        self,
        node: str,
        process: str,
        blobs: MailBlobs,
        find_receiver: Callable[[], Process],
        forget_socket: Callable[[socket.socket], None],
    ) -> None:
        self.address = Address(node, process)
        self._sender = mail_pb2.Address(node=node, process=process)
        self._blobs, self._find_receiver, self._forget_socket = blobs, find_receiver, forget_socket
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._writing = memoryview(b"")
        """What is left of the frames that are being written."""
        self._is_blocked = False
        """The allocator takes no more: the mail thread waits until it does."""
        self._connection: socket.socket | None = None
        self._next: socket.socket | None = None
        """Made by the next allocator, while what the one before has written is still being read."""
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = -1, -1
        self._nodes: set[str] = set()
        """Those to which calls were sent."""
        self._pid = os.getpid()

    # ---- sending ----

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: Sequence[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send a packed message to processes of a node. From any thread; the pieces are used up or copied.

        Raises:
            MonarchNbError: it can not be stored, or so much waits already that the allocator must be gone for good.
        """
        if os.getpid() != self._pid:
            raise MonarchNbError("a process that was forked from a rank can not send messages: only the rank can")
        envelope = Envelope(node=node, processes=processes, sender=self._sender, call=call, answers=answers)
        if sum(memoryview(piece).nbytes for piece in pieces) > INLINE_VALUE_BYTES:
            try:
                envelope.blob = self._blobs.write(pieces)
            except OSError as error:
                raise MonarchNbError(f"the node can not store a large message: {error.strerror}") from error
        else:
            envelope.body = b"".join(pieces)
        waiting = _Waiting(encode_frame(envelope.SerializeToString()), bool(call), envelope.blob)
        with self._lock:
            self._wait_for_room(waiting)
            if call:
                self._nodes.add(node)
            self._queue.append(waiting)
            self._queued_bytes += len(waiting.frame)
            self._write()

    def _wait_for_room(self, waiting: _Waiting) -> None:
        """The mail thread does not wait: it makes the room."""
        if self._queued_bytes <= MAX_QUEUED_BYTES or threading.current_thread() is self._thread:
            return
        if not self._room.wait_for(lambda: self._queued_bytes <= MAX_QUEUED_BYTES, ROOM_WAIT_S):
            if waiting.blob:
                self._blobs.remove(waiting.blob)
            size = f"{self._queued_bytes >> 20} MB of messages"
            raise MonarchNbError(f"{size} wait for this node's allocator, which does not take them: see %mesh doctor")

    def _write(self) -> None:
        """Write as much as the allocator takes; the rest is left to the mail thread. With the lock."""
        while self._connection is not None and not self._is_blocked and (self._writing or self._queue):
            if not self._writing:
                self._writing = memoryview(self._next_frames())
            try:
                self._writing = self._writing[self._connection.send(self._writing, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._is_blocked = True
                self._start()
                self._wake()
            except OSError:  # whoever reads learns of the end, after what came before it
                return

    def _next_frames(self) -> bytes:
        frames, size_bytes = [], 0
        while self._queue and size_bytes < _WRITE_BYTES:
            frames.append(self._queue.popleft().frame)
            size_bytes += len(frames[-1])
        self._queued_bytes -= size_bytes
        self._room.notify_all()
        return frames[0] if len(frames) == 1 else b"".join(frames)

    # ---- connections ----

    def take(self, connection: socket.socket) -> bool:
        """Use a new connection. On the control thread.

        Returns:
            Whether the control thread is to watch it, and to call `first_mail` when there is something to read.
        """
        with self._lock:
            if self._thread is None and not self._nodes:
                if self._connection is not None:
                    self._lose()
                self._use(connection)
                return True
            self._start()
            superseded, self._next = self._next, connection
            self._wake()
        if superseded is not None:
            self._close(superseded)
        return False

    def first_mail(self, connection: socket.socket) -> None:
        """There is something to read: mail, or the end of the connection. On the control thread."""
        try:
            at_end = not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            at_end = False
        except OSError:
            at_end = True
        with self._lock:
            if not at_end or self._nodes:
                self._start()
            elif self._thread is None and self._connection is connection:
                self._lose()

    def _use(self, connection: socket.socket) -> None:
        """Say that what came before is read. With the lock."""
        self._connection = connection
        self._blobs.remove_others({waiting.blob for waiting in self._queue})
        self._writing = memoryview(encode_frame(b""))
        self._write()

    def _lose(self) -> None:
        """The allocator has ended. With the lock."""
        lost, self._connection = self._connection, None
        self._writing, self._is_blocked = memoryview(b""), False
        for waiting in self._queue:
            if waiting.is_call and waiting.blob:
                self._blobs.remove(waiting.blob)
        self._queue = deque(waiting for waiting in self._queue if not waiting.is_call)
        self._queued_bytes = sum(len(waiting.frame) for waiting in self._queue)
        self._room.notify_all()
        if lost is not None:
            self._close(lost)

    def _close(self, connection: socket.socket) -> None:
        self._forget_socket(connection)
        connection.close()

    # ---- the mail thread ----

    def _start(self) -> None:
        """With the lock."""
        if self._thread is None:
            self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="monarch_nb-mail", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        if threading.current_thread() is not self._thread:
            with suppress(BlockingIOError):
                os.write(self._wake_write, b"w")

    def _run(self) -> None:
        receiver = self._find_receiver()
        reader = _Reader(self._blobs, receiver)
        connection: socket.socket | None = None
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        while True:
            if connection is None and (connection := self._connect()) is not None:
                reader.begin()
            if connection is not None:
                poll.register(connection, select.POLLIN | (select.POLLOUT if self._is_blocked else 0))
            ready = dict(poll.poll())
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if connection is None:
                continue
            events = ready.get(connection.fileno(), 0)
            if events & select.POLLOUT:
                with self._lock:
                    self._is_blocked = False
                    self._write()
            if events & ~select.POLLOUT and not reader.read(connection):
                poll.unregister(connection)
                connection = None
                self._tell_lost(receiver)

    def _connect(self) -> socket.socket | None:
        """Return the connection to be read from now on."""
        with self._lock:
            if self._connection is None and self._next is not None:
                connection, self._next = self._next, None
                self._use(connection)
            return self._connection

    def _tell_lost(self, receiver: Process) -> None:
        with self._lock:
            self._lose()
            nodes, self._nodes = self._nodes, set()
        for node in nodes:
            receiver.node_lost(node, _RESTARTED)


class _Reader:
    """Reads envelopes from one connection after the other, and hands on what is in them."""

    def __init__(self, blobs: MailBlobs, receiver: Process) -> None:
        self._blobs, self._receiver = blobs, receiver
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._splitter = FrameSplitter()

    def begin(self) -> None:
        """What comes now is from another connection."""
        self._splitter = FrameSplitter()

    def read(self, connection: socket.socket) -> bool:
        """Take in what is there; return whether more may come."""
        try:
            size_bytes = connection.recv_into(self._buffer)
            envelopes = [Envelope.FromString(frame) for frame in self._splitter.feed(self._buffer[:size_bytes])]
        except BlockingIOError:
            return True
        except (OSError, FrameError, DecodeError):  # the allocator is gone, or it is none
            return False
        for envelope in envelopes:
            try:
                content = self._blobs.take(envelope.blob) if envelope.blob else None
                deliver(envelope, self._receiver, content)
            except Exception:  # noqa: BLE001 -- whatever goes wrong with one message, the others must arrive
                traceback.print_exc()
        return size_bytes > 0


def is_sending(frames: Iterable[FrameType]) -> bool:
    """Return whether a thread writes a message just now: an exception would leave half of it.

    Args:
        frames: the thread's, innermost first.
    """
    for each in frames:
        if each.f_code is Post._wait_for_room.__code__:
            return False
        if each.f_code is Post.send.__code__:
            return True
    return False


class RankOutside:
    """The surroundings of a rank's actors.

    Args:
        post: of this rank.
        executing, interrupt, python: see `Outside`.
    """

    questions = None

    def __init__(
        self,
        post: Post,
        executing: Callable[[Execution], AbstractContextManager[None]],
        interrupt: Callable[[Execution], None],
        python: str,
    ) -> None:
        self._post = post
        self.executing, self.interrupt, self.python = executing, interrupt, python
        self._nobody = Tag({})
        self._programs: dict[str, Address] = {}  # by mesh, who has started its processes

    def home(self, node: str) -> Address:
        """Return where this rank takes messages: on all nodes the same."""
        return self._post.address

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send a message; see `Post.send`."""
        if not processes:
            return
        try:
            self._post.send(node, processes, pieces, call=call, answers=answers)
        except MonarchNbError as error:
            engine.process().undelivered(call, processes, node, str(error), None)

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        """Have processes started by the program that has spawned the actor: only that knows its reservations."""
        owner = engine.process().owner()
        program = owner.birth.root if owner is not None else None
        started = _asked(program, spawn_procs_here, list(hosts), dict(per_host), name, python)

        def note(done: concurrent.futures.Future[Sequence[Address]]) -> None:
            if program is not None and done.exception() is None:
                self._programs[done.result()[0].mesh_id] = program

        started.add_done_callback(note)
        return started

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        """Have the processes of a mesh ended, by the program."""
        return _asked(self._programs.pop(mesh_id, None), stop_procs_here, mesh_id)

    def tag(self, mesh_ids: Collection[str], title: str) -> Tag:
        """Return in whose name is called now."""
        execution = engine.executing()
        return Tag(execution.runs) if execution is not None and execution.runs else self._nobody

    def tell(self, text: str, runs: Runs) -> None:
        """Tell people, in the log of this rank and in what the running code prints."""
        sys.stderr.write(f"{text}\n")


def _asked(program: Address | None, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
    """Have a program call a function; return what comes of it."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if program is None:
        future.set_exception(UsageError("processes are started and stopped by actors, or by reservation.spawn_procs()"))
        return future
    outcome = engine.process().ask(Places([program]), function, *arguments).outcome

    def resolve() -> None:
        try:
            future.set_result(outcome.value()[0])
        except Exception as error:  # noqa: BLE001 (what the program raised, for who waits)
            future.set_exception(error)

    # Unpickling may take long: not on the thread that takes the mail.
    outcome.when_resolved(lambda: threading.Thread(target=resolve, daemon=True).start())
    return future
