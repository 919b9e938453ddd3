"""Which signals a process ignores and blocks: as the kernel tells it, and as a process inherits it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
"""What every Python process ignores, and no program that it starts."""


def ignored_and_blocked(status: str) -> tuple[set[int], set[int]]:
    """Read the file `status` of a process in /proc."""
    return _signals(status, "SigIgn"), _signals(status, "SigBlk")


def _signals(status: str, name: str) -> set[int]:
    """Return those that a program can set: the C library has two for itself, which a runner of CI may leave ignored."""
    [digits] = re.findall(rf"^{name}:\s*(\w+)$", status, re.MULTILINE)
    return {number for number in signal.valid_signals() if int(digits, 16) >> (number - 1) & 1}


@contextmanager
def inherited() -> Iterator[None]:
    """Have processes that are started here ignore signals, as those that `nohup` and a script's `&` start, and block
    others."""
    ignored = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP]
    handlers = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(ignored, handlers, strict=True):
            signal.signal(number, handler)
