"""Who gets the signals of an engine."""

from __future__ import annotations

import os
import signal

import pytest

from monarch_nb.allocator.ranks.signals import is_caught, reach_all_processes


@pytest.mark.parametrize(
    ("cgroups", "is_told"),
    [
        ("0::/user.slice/session-1.scope\n", True),
        ("", True),
        ("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n", False),
        ("5:freezer:/slurm/uid_1000/job_12/step_0\n1:name=systemd:/system.slice/slurmd.service\n", False),
        ("0::/system.slice/n1_slurmstepd.scope/job_12/step_batch/user/task_0\n", False),
    ],
    ids=["linuxproc", "unknown", "v2", "v1", "batch"],
)
def test_slurm_with_control_groups_tells_only_the_processes_that_it_started(cgroups: str, *, is_told: bool) -> None:
    assert reach_all_processes({"SLURM_JOB_ID": "12"}, cgroups) is is_told
    assert not reach_all_processes({}, cgroups), "other engines tell the allocator alone"


def test_what_has_no_handler_is_not_told() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert is_caught(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_caught(2**22 + 1, signal.SIGUSR1), "there is no such process"
