"""What a rank has finished, and the work connection over which it tells the allocator.

Results are kept until the allocator says that it has stored them, so an allocator that was away misses nothing.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from monarch_nb.config import patience
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto.run_pb2 import RankResult
from monarch_nb.proto.worker_pb2 import FromRank, RankHello

_REMEMBERED_RUNS = 200
_SEND_TIMEOUT_S = patience(2.0)


class Results:
    """Thread-safe: the control thread attaches connections, the main thread reports."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._running = ""
        self._done: dict[str, None] = {}
        """The last finished runs, oldest first: a dictionary, because a search must not touch them all."""
        self._kept: dict[str, RankResult] = {}

    def attach(self, connection: socket.socket) -> None:
        """Say hello on a new work connection, which replaces the older one."""
        with self._lock:
            self._connection = connection
            kept = list(self._kept.values())
            hello = RankHello(rank=self._rank, pid=os.getpid(), running=self._running, done=self._done, results=kept)
            self._send(encode_frame(FromRank(hello=hello).SerializeToString()))

    def detach(self, connection: socket.socket) -> None:
        """Forget a connection that was closed."""
        with self._lock:
            if self._connection is connection:
                self._connection = None

    def start(self, run_id: str) -> None:
        """Note that a run begins."""
        with self._lock:
            self._running = run_id

    def finish(self, result: RankResult) -> None:
        """Keep a result, and report it when somebody listens.

        Raises:
            FrameError: it is too long to be sent.
        """
        frame = encode_frame(FromRank(result=result).SerializeToString())
        with self._lock:
            self._running = ""
            self._done[result.run_id] = None
            if len(self._done) > _REMEMBERED_RUNS:
                del self._done[next(iter(self._done))]
            self._kept[result.run_id] = result
            self._send(frame)

    def knows(self, run_id: str) -> bool:
        """Return whether a run is running or done; a result that is still kept is sent again."""
        with self._lock:
            if run_id in self._kept:
                self._send(encode_frame(FromRank(result=self._kept[run_id]).SerializeToString()))
            return run_id == self._running or run_id in self._done

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop results that the allocator has stored."""
        with self._lock:
            for run_id in run_ids:
                self._kept.pop(run_id, None)

    def tell(self, message: FromRank) -> None:
        """Tell the allocator something that is of no use to it later."""
        with self._lock:
            self._send(encode_frame(message.SerializeToString()))

    def _send(self, frame: bytes) -> None:
        """Send, or give the connection up: a rank never waits long for its reader, and the result is kept."""
        if self._connection is None:
            return
        try:
            send_all(self._connection, frame, _SEND_TIMEOUT_S)
        except OSError:
            with suppress(OSError):  # half a message may be sent: the allocator has to connect again
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection = None


def send_all(connection: socket.socket, data: bytes, timeout_s: float) -> None:
    """Send `data` on a non-blocking socket.

    Raises:
        OSError: the peer is gone, or has read nothing for `timeout_s` (TimeoutError).
    """
    view, deadline = memoryview(data), time.monotonic() + timeout_s
    poll = select.poll()  # not `select`, which knows no descriptor above 1023
    poll.register(connection, select.POLLOUT)
    while view:
        try:
            view = view[connection.send(view, socket.MSG_NOSIGNAL) :]
            deadline = time.monotonic() + timeout_s
        except BlockingIOError:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise TimeoutError("the peer does not read") from None
