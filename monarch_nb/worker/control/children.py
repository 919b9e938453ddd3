"""Processes that user code has started: Ctrl-C is for them, too, as it is for a process group in a terminal, under
torchrun and in a Jupyter kernel. Else what waits for them would wait on, and they would go on beside the next run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass

_TICKS_A_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Moment:
    """When something began or was asked.

    Attributes:
        at_s: on the clock by which the kernel says when a process began, in ticks.
        newest: the process that had begun last, where it is known; of two in one tick it tells which was first.
    """

    at_s: float
    newest: int

    @classmethod
    def now(cls) -> Moment:
        newest = sys.maxsize
        with contextlib.suppress(OSError), open("/proc/loadavg", "rb") as file:  # no descriptors may be left
            newest = int(file.read().split()[-1])
        return cls(time.clock_gettime(time.CLOCK_BOOTTIME), newest)

    def is_before(self, pid: int, ticks: int) -> bool:
        """Return whether a process began later."""
        if ticks == int(self.at_s * _TICKS_A_S):
            return pid > self.newest
        return ticks > self.at_s * _TICKS_A_S


def interrupt(since: Moment, until: Moment) -> None:
    """Send SIGINT to the processes of this rank's group that have begun in that time.

    What has a group or a session of its own is left alone, as by a terminal; and so is what is older: a server or the
    workers of another cell.
    """
    group = os.getpgrp()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or (pid := int(entry.name)) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            ticks = int(fields[19])
            if int(fields[2]) == group and since.is_before(pid, ticks) and not until.is_before(pid, ticks):
                os.kill(pid, signal.SIGINT)
