"""What memory a process has."""

from pathlib import Path


def proportional_memory_bytes(pid: int) -> int:
    """Return the PSS of a process: its own memory and its share of what it shares; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
