"""What is said of processes that their reservation's limit of memory has killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.cgroups import group_of, memory_cause
from monarch_nb.config import CGROUP_VARIABLE


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The files of a group whose limit has killed two processes."""
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.max").write_text("68719476736\n")
    return tmp_path


def test_a_limit_that_has_killed_is_named(group: Path) -> None:
    cause = memory_cause(str(group), deaths_before=1)
    assert cause.startswith(
        "out of memory: the reservation's processes on this node reached their limit of 64G together"
    )
    death = processes.explain_death(
        7, signal.SIGKILL, killed_by_us=False, oom_kills_before=-1, stderr_tail=[], limit=cause
    )
    assert death.likely_cause == cause


def test_a_reservation_has_the_group_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CGROUP_VARIABLE, raising=False)
    assert group_of("1" * 32) == ""
    monkeypatch.setenv(CGROUP_VARIABLE, str(tmp_path))
    assert group_of("1" * 32) == ""
    (tmp_path / ("1" * 32)).mkdir()
    assert group_of("1" * 32) == str(tmp_path / ("1" * 32))
