"""Processes that user code has started: Ctrl-C is for them, too, as it is for a process group in a terminal, under
torchrun and in a Jupyter kernel. Else what waits for them would wait on, and they would go on beside the next run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def now_s() -> float:
    """Return the time on the clock by which the kernel says when a process began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def interrupt(since_s: float, until_s: float) -> None:
    """Send SIGINT to the processes of this rank's group that have begun in that time.

    What has a group or a session of its own is left alone, as by a terminal; and so is what is older: a server or the
    workers of another cell.

    Args:
        since_s, until_s: as `now_s` says it.
    """
    group = os.getpgrp()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[2]) == group and since_s - _TICK_S <= int(fields[19]) * _TICK_S <= until_s:
                os.kill(int(entry.name), signal.SIGINT)
