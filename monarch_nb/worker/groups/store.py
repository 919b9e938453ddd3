"""The store of a mesh: the process that hosts torch.distributed's TCPStore for as long as the mesh lives, where it
listens, and connecting to it.

A store inside rank 0 would die with rank 0, and a later init would meet the keys of an earlier one. It listens
elsewhere once the node that hosted it has died.

Torch tries to connect for half an hour in C++, which no interrupt ends, and prints a page of its stack at each attempt.
Here it is done in short attempts, so that an interrupt gets through. This is no part of the rendezvous, where
interrupts wait: here nothing is noted yet.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from monarch_nb.config import cadence
from monarch_nb.ground import interrupting
from monarch_nb.ground.readable import readable
from monarch_nb.times import duration

_BACKLOG = 4096


def serve(host: str, report_port: Callable[[int], None], port: int = 0) -> NoReturn:
    """Host a TCPStore on `host` until SIGTERM. Runs in a process forked for it, of which it takes possession.

    Args:
        host: the one address to listen on.
        report_port: called once with the port, when clients can connect. What it needs (a pipe) may be a
            descriptor of the template: these are closed afterwards.
        port: where to listen; 0 for any free one.

    Example:
        >>> if os.fork() == 0:
        ...     serve("127.0.0.1", lambda port: pipe.send_bytes(b"%d" % port))
    """
    inherited = _open_descriptors()
    # An engine tells the allocator that a job ends, which ends this process. If a site's engine tells every process of
    # a job, ranks may still save, and need the store for that. The same holds for SIGUSR1, a warning.
    in_job = any(name in os.environ for name in ("SLURM_JOB_ID", "LSB_JOBID"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if in_job else signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    port = listener.getsockname()[1]
    report_port(port)
    _close(inherited)
    # Without a preload torch takes 2 s to import. Who reserves does not wait for that, nor does a mesh without groups.
    readable([listener])
    dist: Any = importlib.import_module("torch.distributed")
    # TCPStore would listen on every interface; this socket listens on one.
    _store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    while True:
        signal.pause()


def _open_descriptors() -> list[int]:
    return [descriptor for descriptor in map(int, os.listdir("/proc/self/fd")) if _is_open(descriptor)]


def _is_open(descriptor: int) -> bool:
    """False for the descriptor that listed the others: its number is free again."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor > 2 and _is_open(descriptor):
            os.close(descriptor)


Address = tuple[str, int]
"""Host and port."""


class MeshStore:
    """The address of the mesh's store, followed as it moves.

    Args:
        address: where it listened when the rank started, as MASTER_ADDR and MASTER_PORT said.
        note: the file in which the node says where it is now, once it has moved; None: it never does.
        report: called with the address at which nobody answers: the node then finds the store, or has another hosted.
    """

    def __init__(self, address: Address, note: Path | None, report: Callable[[Address], None]) -> None:
        self._address, self._note, self.report = address, note, report

    def look(self) -> Address:
        """Return where it is now. MASTER_ADDR and MASTER_PORT follow, unless the user has set them to another one."""
        if self._note is None:
            return self._address
        try:
            host, port = self._note.read_text().split()
        except FileNotFoundError:
            return self._address
        now = host, int(port)
        if now != self._address:
            if (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")) == _as_variables(self._address):
                os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = _as_variables(now)
            self._address = now
        return now


def _as_variables(address: Address) -> tuple[str, str]:
    return address[0], str(address[1])


_ATTEMPT_S = cadence(2.0)
_PATIENCE_S = cadence(4.0)
"""Before it is said that no store answers: one that nobody has asked so far imports torch first."""
_PAUSE_S = cadence(0.3)
"""Between attempts, in Python: here an interrupt gets through, which is tried again every tenth of a second."""


@interrupting.waits
def pause(time_s: float) -> None:
    """Wait, here in Python, where an interrupt gets through."""
    time.sleep(time_s)


def connect(
    attempt: Callable[[timedelta], Any], where: str, timeout: timedelta, quietly: AbstractContextManager[Any]
) -> Any:
    """Return a store once an attempt succeeds; say in a line that there is none when they fail for a while.

    Args:
        attempt: makes a store that is connected, within the time that it is given, or raises RuntimeError.
        where: the store's address, for people.
        timeout: what the last attempt fails after; also the store's from then on.
        quietly: what attempts are made in.
    """
    began = time.monotonic()
    deadline = began + timeout.total_seconds()
    said = False
    while True:
        left_s = deadline - time.monotonic()
        try:
            with quietly:
                store = attempt(timedelta(seconds=min(max(left_s, 0.001), _ATTEMPT_S)))
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise
            if not said and time.monotonic() - began >= _PATIENCE_S:
                said = True
                sys.stderr.write(f"no store answers at {where} yet: trying for {duration(timeout.total_seconds())}\n")
            pause(_PAUSE_S)
        else:
            store.set_timeout(timeout)
            return store
