"""Signals with which an engine warns a job. The engine tells the processes that it has started: for a job of ours, the
allocator. Slurm tells no other process of a step, whether it tracks them by control groups or not.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


def is_caught(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def thread_named(pid: int, name: str) -> int | None:
    """Return a thread of a process that the kernel calls so."""
    for thread in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda each: int(each.name)):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (thread / "comm").read_text().rstrip() == name:
                return int(thread.name)
    return None
