"""Limits are written where the kernel reads them. The files are stand-ins: CI's machine has no such controllers."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from monarch_nb.warden import groups
from monarch_nb.warden.groups import Groups, end_group, end_tree, memory_deaths, start_ticks
from monarch_nb.warden.requests import Refused, Unfinished


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a cgroup whose machine limits memory, but no CPUs."""
    for name, text in (("kill", ""), ("procs", ""), ("controllers", "cpuset memory pids")):
        (tmp_path / f"cgroup.{name}").write_text(text)
    monkeypatch.setattr(os, "chown", lambda *_: None)
    return tmp_path


def test_a_limit_is_of_a_person_and_of_each_reservation(base: Path) -> None:
    groups = Groups(base)
    assert (base / "cgroup.subtree_control").read_text() == "+memory"
    room = Path(groups.make("alice", 1000, "", 64 << 30, None))
    (room / "memory.swap.max").write_text("max")
    reservation = Path(groups.make("alice", 1000, "1" * 32, 16 << 30, None))
    assert (room, reservation) == (base / "rooms/alice", base / "rooms/alice" / ("1" * 32))
    assert (room / "memory.max").read_text() == str(64 << 30)
    assert (room / "cgroup.subtree_control").read_text() == "+memory"
    assert (reservation / "memory.max").read_text() == str(16 << 30)
    groups.make("alice", 1000, "", 32 << 30, None)
    assert (room / "memory.swap.max").read_text() == "0"
    groups.make("alice", 1000, "", None, None)
    assert (room / "memory.max").read_text() == (room / "memory.swap.max").read_text() == "max"
    assert not (room / "cpu.max").exists()
    with pytest.raises(Refused, match="can not limit memory or CPUs"):
        groups.make("alice", 1000, "", None, 8)


def test_cpus_are_a_share_of_each_tenth_of_a_second(base: Path) -> None:
    (base / "cgroup.controllers").write_text("cpu memory")
    groups = Groups(base)
    groups.make("alice", 1000, "", None, None)
    group = Path(groups.make("alice", 1000, "1" * 32, None, 1.5))
    assert (group / "cpu.max").read_text() == "150000 100000"


def test_what_limits_nothing_refuses_limits_and_makes_no_groups(base: Path) -> None:
    groups = Groups(None)
    assert groups.make("alice", 1000, "", None, None) == ""
    assert groups.room("alice") is None
    with pytest.raises(Refused, match="can not limit memory"):
        groups.make("alice", 1000, "", 1 << 30, None)
    (base / "cgroup.kill").unlink()
    with pytest.raises(Refused, match="is no cgroup v2 that can be ended"):
        Groups(base)


def test_what_is_still_there_after_a_while_is_asked_for_again(base: Path) -> None:
    (base / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(Unfinished, match="do not end: they wait in the kernel, for a disk or a GPU"):
        end_group(base, patience_s=0.01)
    assert (base / "cgroup.kill").read_text() == "1"


def test_deaths_by_the_limit_are_counted(base: Path) -> None:
    assert memory_deaths(base) == 0
    (base / "memory.events").write_text("oom 4\noom_kill 3\n")
    assert memory_deaths(base) == 3


def test_what_is_killed_just_before_the_deadline_has_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def one_more(*of_room: int) -> dict[int, int]:
        started.append(subprocess.Popen(["sleep", "1000"]))
        return {started[-1].pid: start_ticks(started[-1].pid)}

    times_s = iter([0.0, 59.0, 61.0])
    monkeypatch.setattr(groups, "_descendants", one_more)
    monkeypatch.setattr(time, "monotonic", lambda: next(times_s, 61.0))
    try:
        with pytest.raises(Unfinished, match="faster than they are ended"):
            end_tree(os.getuid(), 0, patience_s=60.0)
    finally:
        monkeypatch.undo()
        for process in started:
            process.kill()
            process.wait()
