"""How many CPUs there are."""

import os
from pathlib import Path

import pytest

from monarch_nb.ground.cpus import usable_cpus

V1 = "32 31 0:29 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
V2 = "41 31 0:38 {root} /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw"


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on 16 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 16, raising=False)


def machine(root: Path, cgroup: str, mounts: str, files: dict[str, str]) -> Path:
    """Write what a process sees of its cgroups."""
    files = files | {"proc/self/cgroup": cgroup, "proc/self/mountinfo": f"23 1 8:1 / / rw - ext4 /dev/x rw\n{mounts}\n"}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 1), ("20000 100000", 1)]
)
def test_a_quota_of_version_2_counts(quota: str, expected: int, tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/job/cpu.max": f"{quota}\n"}
    assert usable_cpus(machine(tmp_path, "0::/job\n", V2.format(root="/"), files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("400000", 4), ("3200000", 16)])
def test_a_quota_of_version_1_counts(quota: str, expected: int, tmp_path: Path) -> None:
    cpu = "sys/fs/cgroup/cpu/job"
    files = {f"{cpu}/cpu.cfs_quota_us": f"{quota}\n", f"{cpu}/cpu.cfs_period_us": "100000\n"}
    cgroup = "4:memory:/other\n2:cpu,cpuacct:/job\n0::/\n"
    assert usable_cpus(machine(tmp_path, cgroup, V1.format(root="/"), files)) == expected


def test_the_smallest_quota_above_counts(tmp_path: Path) -> None:
    files = {f"sys/fs/cgroup/{name}/cpu.max": text for name, text in [("a", "300000 100000"), ("a/b", "max 100000")]}
    assert usable_cpus(machine(tmp_path, "0::/a/b\n", V2.format(root="/"), files)) == 3


@pytest.mark.parametrize(("cgroup", "root"), [("/docker/1f", "/docker/1f"), ("/", "/"), ("/", "/.."), ("/../x", "/")])
def test_a_container_sees_its_own_cgroup_at_the_top(cgroup: str, root: str, tmp_path: Path) -> None:
    """Whether the namespace of cgroups is its own, or that of the machine."""
    files = {"sys/fs/cgroup/cpu.max": "500000 100000"}
    assert usable_cpus(machine(tmp_path, f"0::{cgroup}\n", V2.format(root=root), files)) == 5


def test_without_cgroups_the_processors_count(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 16
