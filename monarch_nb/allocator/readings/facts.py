"""What a node has: CPU slots, and the memory of its processes."""

import os
from pathlib import Path


def cpu_slots() -> int:
    """Return the number of CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def proportional_memory_bytes(pid: int) -> int:
    """Return the PSS of a process: its own memory and its share of what it shares; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
