"""Which TCP connections of this rank belong to its process groups, and how just those are shut down.

Gloo keeps the listening socket and all connections of a group registered with one epoll instance of its own, and
`/proc/self/fdinfo` shows what is registered: so a user's connections are never taken for Gloo's. Connections to a
store are known by their remote address.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from monarch_nb.config import cadence, patience
from monarch_nb.worker.groups.store import pause

Endpoint = tuple[str, int]
Connection = tuple[int, int]
"""A descriptor, and the inode of its socket: the number alone may soon be another file's."""

_DESCRIPTORS_DIRECTORY = Path("/proc/self/fd")
_THREADS = Path("/proc/self/task")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)
_REGISTERED = re.compile(r"^tfd:\s*(\d+).*?\bino:\s*([0-9a-f]+)", re.MULTILINE)
_HANDSHAKE = struct.Struct("=q")
_ACKED_AND_RECEIVED = slice(120, 136)
"""Two counters in the kernel's struct tcp_info."""


@dataclass(frozen=True)
class GlooLoop:
    """The event loop of one Gloo group.

    Attributes:
        listener: inode of its listening socket, which names the loop.
        address: where that socket listens.
        connections: to peers.
    """

    listener: int
    address: Endpoint
    connections: tuple[Connection, ...]


def parse_epoll(fdinfo: str) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether an epoll descriptor is closed on exec, and the (descriptor, inode) of all that it watches."""
    flags = _FLAGS.search(fdinfo)
    close_on_exec = bool(flags and int(flags[1], 8) & os.O_CLOEXEC)
    return close_on_exec, [(int(descriptor), int(inode, 16)) for descriptor, inode in _REGISTERED.findall(fdinfo)]


def gloo_loops() -> list[GlooLoop]:
    """Return the loops of all Gloo groups of this process, and of nothing else that waits with epoll.

    What tells them apart: they have a listening TCP socket, and Gloo does not close them on exec, as Python, libuv
    and gRPC do.
    """
    loops = []
    for descriptor, target in _open_descriptors():
        if "[eventpoll]" not in target:
            continue
        try:
            close_on_exec, watched = parse_epoll(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
        except OSError:
            continue  # closed meanwhile
        if not close_on_exec and (loop := _as_gloo_loop(watched)):
            loops.append(loop)
    return loops


def connections_to(endpoints: Collection[Endpoint]) -> list[Connection]:
    """Return this process's connections to any of `endpoints`."""
    found = []
    for descriptor, target in _open_descriptors():
        if target.startswith("socket:["):
            inode = int(target[len("socket:[") : -1])
            with _borrow(descriptor, inode) as connection:
                if connection is not None and _remote(connection) in endpoints:
                    found.append((descriptor, inode))
    return found


def shut_down(connections: Collection[Connection], how: int = socket.SHUT_RDWR) -> None:
    """Shut connections down, in both directions or as `how` says, so that whoever waits on them is woken."""
    for descriptor, inode in connections:
        with _borrow(descriptor, inode) as connection, contextlib.suppress(OSError):
            if connection is not None:
                connection.shutdown(how)


@dataclass(frozen=True)
class Traffic:
    """How far some connections have got.

    Attributes:
        queued_bytes: not yet taken by the peers, or by this process.
        moved: changes whenever anything moves.
    """

    queued_bytes: int
    moved: tuple[bytes, ...]


def traffic(connections: Collection[Connection]) -> Traffic:
    """Return the present state of `connections`; equal to the next one when nothing has moved between them."""
    queued_bytes, moved = 0, []
    for descriptor, inode in connections:
        with _borrow(descriptor, inode) as connection, contextlib.suppress(OSError):
            if connection is not None:
                queued = [
                    fcntl.ioctl(connection, request, bytes(4)) for request in (termios.FIONREAD, termios.TIOCOUTQ)
                ]
                queued_bytes += sum(int.from_bytes(size, sys.byteorder) for size in queued)
                information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AND_RECEIVED.stop)
                moved += [*queued, information[_ACKED_AND_RECEIVED]]
    return Traffic(queued_bytes, tuple(moved))


def gloo_runs() -> bool:
    """Return whether any of Gloo's threads runs, or would if the machine were less busy."""
    for thread in os.listdir(_THREADS):
        with contextlib.suppress(OSError):  # it has ended
            name, _, fields = (_THREADS / thread / "stat").read_bytes().rpartition(b")")
            if b"gloo_" in name and fields.split()[0] == b"R":
                return True
    return False


def knock(loop: GlooLoop, group_size: int) -> None:
    """Connect to a loop's own listening socket in the place of every peer, and hang up.

    A rank that waits for a peer to connect has no connection yet that could be shut down. Gloo's handshake is the
    number of the pair, from 0 up.
    """
    for pair in range(group_size):
        with contextlib.suppress(OSError), socket.create_connection(loop.address, timeout=1) as connection:
            connection.sendall(_HANDSHAKE.pack(pair))


def resolve(host: str, port: int) -> set[Endpoint]:
    """Return every address of `host`, each with `port`; empty when it has none."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(_plain_address(str(answer[4][0])), port) for answer in answers}


def _open_descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir(_DESCRIPTORS_DIRECTORY):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield int(name), os.readlink(_DESCRIPTORS_DIRECTORY / name)


def _as_gloo_loop(watched: list[tuple[int, int]]) -> GlooLoop | None:
    listener: tuple[int, Endpoint] | None = None
    connections = []
    for descriptor, inode in watched:
        with _borrow(descriptor, inode) as connection:
            if connection is None:
                continue
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port = connection.getsockname()[:2]
                listener = inode, (host, port)
            else:
                connections.append((descriptor, inode))
    return GlooLoop(*listener, tuple(connections)) if listener else None


@contextlib.contextmanager
def _borrow(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """Yield the TCP socket at `descriptor`, or None when it is none or has become another file meanwhile."""
    connection = _duplicate(descriptor)
    if connection is None:
        yield None
        return
    with connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        yield connection if is_tcp and os.fstat(connection.fileno()).st_ino == inode else None


def _duplicate(descriptor: int) -> socket.socket | None:
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None  # closed meanwhile
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)  # not a socket
        return None


def _remote(connection: socket.socket) -> Endpoint | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None
    return _plain_address(host), port


def _plain_address(address: str) -> str:
    """Return `address` without what only its spelling adds: `::ffff:127.0.0.1` is 127.0.0.1."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


_TURN_S = cadence(0.02)
_SAMPLE_S = cadence(0.01)
_MOVING_S = patience(5.0)
_STUCK_S = cadence(0.5)


class GroupConnections:
    """Knows Gloo's loops by when they appeared: while a group was made.

    Attributes:
        endpoints: the stores that groups use.
        lock: held while connections are shut down, and while the making of a group begins.
    """

    def __init__(self) -> None:
        self.endpoints: set[Endpoint] = set()
        self.lock = threading.Lock()
        self._turn = threading.RLock()
        self._depth = 0
        self._idle = threading.Event()
        self._idle.set()
        self._others: frozenset[int] = frozenset()
        self._listeners: frozenset[int] = frozenset()
        self._group_size = 0
        self._whole: dict[int, int] = {}

    @property
    def is_making(self) -> bool:
        """Whether a group is being made."""
        return self._depth > 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One thread at a time makes or destroys groups: a cell and an actor may want to at once, and neither torch's
        books nor these can tell them apart."""
        while not self._turn.acquire(blocking=False):  # here no interrupt comes, but in the pause
            pause(_TURN_S)
        try:
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def making(self, group_size: int = 0) -> Iterator[None]:
        """While it is open, new Gloo loops belong to groups. May be nested.

        Args:
            group_size: of the group that is made; 0 where it is not known yet.
        """
        with self.turn():
            with self.lock:
                if self._depth == 0:
                    self._others = frozenset(loop.listener for loop in gloo_loops()) - self._listeners
                    self._idle.clear()
                self._group_size = group_size
                self._depth += 1
            try:
                yield
            finally:
                if self._depth == 1:
                    self._listeners = frozenset(loop.listener for loop in self._loops())
                self._depth -= 1
                if self._depth == 0:
                    self._idle.set()

    @contextlib.contextmanager
    def making_default(self) -> Iterator[None]:
        """As `making`; the loops that are new at its end are those of the default group."""
        with self.making():
            self._whole = {}
            yield
            # A peer may have ended already, and its connection with it.
            peers = 0 if _connects_late() else self._group_size - 1
            loops = [loop for loop in self._loops() if self._is_new(loop)]
            self._whole = {loop.listener: max(peers, len(loop.connections)) for loop in loops}

    def forget_default(self) -> None:
        """The default group is gone."""
        self._whole = {}

    def lost_peers(self, wait_s: float = 0) -> bool:
        """Return whether a peer has left the default group: then it is of no use to anyone.

        Args:
            wait_s: look again for so long, because Gloo raises an error a moment before it closes the connection.
        """
        deadline = time.monotonic() + wait_s
        while self._whole:
            now = {loop.listener: len(loop.connections) for loop in self._loops()}
            if any(now.get(listener, 0) < count for listener, count in self._whole.items()):
                return True
            if time.monotonic() >= deadline:
                break
            time.sleep(_SAMPLE_S)
        return False

    def all(self) -> list[Connection]:
        """Return the connections to all peers and stores."""
        return connections_to(self.endpoints) + self._to_peers()

    def shut_down(self, *, stores: bool) -> None:
        """Shut down the connections to peers, also those that they have yet to make, and to `stores`. Takes no lock.

        Gloo learns of an end by reading, and then closes the connection and wakes who waits; but not who is sending.
        So it can go on to write until it has read all: a write that failed first would leave its sender asleep.
        """
        shut_down(self._to_peers(), socket.SHUT_RD)
        if stores:
            shut_down(connections_to(self.endpoints))
        for loop in self._loops():
            if self._is_new(loop) or _connects_late():
                knock(loop, self._group_size)

    def wait_until_made(self, timeout_s: float) -> bool:
        """Wait until no group is being made; return False when one still is."""
        return self._idle.wait(timeout_s)

    def wait_for_standstill(self) -> None:
        """Wait until nothing moves between this rank and its peers, as when a collective hangs.

        What still moves may end by itself; and Gloo never wakes a thread whose connection ends while it sends. Where
        the machine is busy nothing may move though a thread of Gloo's is about to send.
        """
        deadline, still_since = time.monotonic() + _MOVING_S, time.monotonic()
        before = None
        while time.monotonic() < deadline:
            now = traffic(self._to_peers())
            if now != before:
                still_since = time.monotonic()
            elif not (now.queued_bytes or gloo_runs()) or time.monotonic() - still_since > _STUCK_S:
                return
            before = now
            time.sleep(_SAMPLE_S)  # the kernel tells nobody that nothing moves

    def _to_peers(self) -> list[Connection]:
        return [connection for loop in self._loops() for connection in loop.connections]

    def _loops(self) -> list[GlooLoop]:
        return [loop for loop in gloo_loops() if loop.listener in self._listeners or self._is_new(loop)]

    def _is_new(self, loop: GlooLoop) -> bool:
        return self.is_making and loop.listener not in self._listeners | self._others


def _connects_late() -> bool:
    """Return whether Gloo connects two ranks when they first have something to say to each other."""
    return bool(os.environ.get("TORCH_GLOO_LAZY_INIT"))
