"""Where this process's id counts."""

from __future__ import annotations

import os
from functools import cache


@cache
def pid_namespace() -> str:
    """Return what names the namespace of process ids that this process is in; "" where there are none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
