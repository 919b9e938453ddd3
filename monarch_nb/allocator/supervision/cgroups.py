"""Cgroups (v2) of reservations, which a warden makes for a room: processes join theirs, and may die of its limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from monarch_nb.config import CGROUP_VARIABLE, FENCED_VARIABLE
from monarch_nb.warden.groups import memory_deaths
from monarch_nb.warden.users_file import memory_text

CAN_NOT_LIMIT = (
    "this node can not limit memory or CPUs of a reservation: an allocator --as-users can, on a machine with cgroups "
    "(v2); reserve without --memory and --cpus here"
)


def group_of(reservation_id: str) -> str:
    """Return the path of a reservation's cgroup; "" where it has none."""
    base = os.environ.get(CGROUP_VARIABLE)
    return path if base and os.path.isdir(path := f"{base}/{reservation_id}") else ""


def numbers_of(gpu_indices: Sequence[int], leased: Sequence[int]) -> list[int]:
    """Return by which numbers a process of a reservation knows some of its GPUs: the driver counts those that it can
    open."""
    if FENCED_VARIABLE not in os.environ:
        return list(gpu_indices)
    return [sorted(leased).index(index) for index in gpu_indices]


def memory_cause(group: str, deaths_before: int) -> str:
    """Return what to say of a process that was killed, if its cgroup's limit has killed some since then; else ""."""
    if not group or memory_deaths(Path(group)) <= deaths_before:
        return ""
    most = Path(group, "memory.max").read_text().strip()
    amount = f" of {memory_text(int(most))}" if most.isdigit() else ""
    return (
        f"out of memory: the reservation's processes on this node reached their limit{amount} together; use a smaller "
        "batch or model or fewer ranks per node, reserve with more --memory, or ask whoever runs the node for more "
        "(users.toml)"
    )
