"""Which connections of this rank belong to its process groups, and how they end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from monarch_nb.config import cadence, patience
from monarch_nb.worker.groups import sockets
from monarch_nb.worker.groups.sockets import Connection, Endpoint, GlooLoop
from monarch_nb.worker.groups.store_connection import pause

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
                    self._others = frozenset(loop.listener for loop in sockets.gloo_loops()) - self._listeners
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
        return sockets.connections_to(self.endpoints) + self._to_peers()

    def shut_down(self, *, stores: bool) -> None:
        """Shut down the connections to peers, also those that they have yet to make, and to `stores`. Takes no lock.

        Gloo learns of an end by reading, and then closes the connection and wakes who waits; but not who is sending.
        So it can go on to write until it has read all: a write that failed first would leave its sender asleep.
        """
        sockets.shut_down(self._to_peers(), socket.SHUT_RD)
        if stores:
            sockets.shut_down(sockets.connections_to(self.endpoints))
        for loop in self._loops():
            if self._is_new(loop) or _connects_late():
                sockets.knock(loop, self._group_size)

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
            now = sockets.traffic(self._to_peers())
            if now != before:
                still_since = time.monotonic()
            elif not (now.queued_bytes or sockets.gloo_runs()) or time.monotonic() - still_since > _STUCK_S:
                return
            before = now
            time.sleep(_SAMPLE_S)  # the kernel tells nobody that nothing moves

    def _to_peers(self) -> list[Connection]:
        return [connection for loop in self._loops() for connection in loop.connections]

    def _loops(self) -> list[GlooLoop]:
        return [loop for loop in sockets.gloo_loops() if loop.listener in self._listeners or self._is_new(loop)]

    def _is_new(self, loop: GlooLoop) -> bool:
        return self.is_making and loop.listener not in self._listeners | self._others


def _connects_late() -> bool:
    """Return whether Gloo connects two ranks when they first have something to say to each other."""
    return bool(os.environ.get("TORCH_GLOO_LAZY_INIT"))
