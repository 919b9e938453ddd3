"""Signals with which an engine tells a job that it ends: who gets them from the engine, and who would stand them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

_OF_STEP = re.compile(r"/job_\w+(/step_\w+)?")


def reach_all_processes(environment: Mapping[str, str], cgroups: str) -> bool:
    """Return whether the engine sends SIGTERM to all processes of a job by itself. Pure.

    Slurm does so unless it knows them by control groups (proctrack/cgroup): then the processes that it has started get
    signals, and what these have started gets SIGKILL alone. Other signals never go to all of them.

    Args:
        environment: of a process of the job. cgroups: what /proc/self/cgroup says of it.

    Example:
        >>> step = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
        >>> reach_all_processes({"SLURM_JOB_ID": "12"}, "0::/"), reach_all_processes({"SLURM_JOB_ID": "12"}, step)
        (True, False)
    """
    return "SLURM_JOB_ID" in environment and _OF_STEP.search(cgroups) is None


def own_cgroups() -> str:
    """Return what the kernel says of this process's control groups; empty when it says nothing."""
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def is_caught(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
