"""How many CPUs this process may use: those that it may run on, and no more than its containers' quotas allow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process has, at least 1. Of a quota of 1.5 CPUs it is one: whoever computes with two
    threads waits a quarter of the time.

    Args:
        root: below which /proc and the cgroups lie.

    Example:
        >>> usable_cpus()  # in a container with --cpus=4, on a machine with 64
        4
    """
    return max(1, int(min([_may_run_on(), *_quotas(root)])))


def _may_run_on() -> int:
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield how many CPUs our cgroups, of version 1 and 2, may use. Those above them count, too."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return
    groups = {name: group for _, names, group in (line.split(":", 2) for line in own) for name in names.split(",")}
    for mount in mounts:
        place, _, what = mount.partition(" - ")
        kind, _, options = what.split(" ", 2)
        version_1 = kind == "cgroup" and "cpu" in options.split(",")
        if (version_1 or kind == "cgroup2") and (group := groups.get("cpu" if version_1 else "")):
            mounted, point = place.split(" ")[3:5]
            top = root / point.lstrip("/")
            below = os.path.relpath(group, mounted)
            directory = top if below.startswith("..") else top / below  # "..": a namespace shows us no more than `top`
            for at in (directory, *directory.parents):
                yield from _quota(at)
                if at == top:
                    break


def _quota(group: Path) -> Iterator[float]:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except OSError:  # the topmost has none
        return
