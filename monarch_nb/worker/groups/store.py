"""The store process of a mesh: hosts torch.distributed's TCPStore for as long as the mesh lives.

A store inside rank 0 would die with rank 0, and a later init would meet the keys of an earlier one.
"""

import importlib
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

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
    select.select([listener], [], [])
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
