"""Learning of the end of a process that may not be our child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import ClassVar

from monarch_nb.allocator.supervision import processes


class ProcessWatch:
    """Learns of a process's end from its pidfd, within a millisecond.

    Attributes:
        ended: set when the process is gone.
    """

    watched: ClassVar[set[int]] = set()
    """The pids whose exit statuses somebody wants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.watched.add(pid)
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            self._fd: int | None = os.pidfd_open(pid)
            self._loop.add_reader(self._fd, self._on_end)
        except ProcessLookupError:
            self._fd = None
            self.ended.set()

    def _on_end(self) -> None:
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        self.ended.set()

    def kill(self) -> None:
        """SIGKILL this process, and no other that has its pid by now."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def exit_status(self) -> int | None:
        """Return the wait status when the kernel still tells it to us, who may not be the parent."""
        status = processes.reap(self.pid)
        if status is None and self._fd is not None:
            status = processes.exit_status_of(self._fd)
        return status

    def close(self) -> None:
        self.watched.discard(self.pid)
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
