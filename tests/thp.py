"""Linux's transparent huge pages: whether this kernel collapses memory into them, and what a process has in them."""

from __future__ import annotations

import platform
from pathlib import Path


def why_none() -> str:
    """Return why no memory can be put into huge pages here; empty when it can."""
    release = tuple(map(int, platform.release().split(".")[:2]))
    if release < (6, 1) or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        return "this kernel does not put memory into huge pages when asked"
    return ""


def huge_bytes(pid: int) -> int:
    """Return how much of a process's anonymous memory is in huge pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))
