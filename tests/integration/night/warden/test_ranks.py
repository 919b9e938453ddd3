"""In a room, ranks and scripts are in the cgroup of their reservation before their first cell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import monarch_nb
from integration.night.warden.wardens import TIMEOUT_S, gone, skip_unless_possible
from monarch_nb.config import CGROUP_VARIABLE
from monarch_nb.errors import RunFailed, UsageError
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.warden.groups import Groups, end_group

KILLED = """
import os, pathlib, signal
group = pathlib.Path({group!r})
(group / "memory.events").write_text("oom 1\\noom_kill 1\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
WHERE = "open('/proc/self/cgroup').read().split('0::')[1].strip()"


def test_ranks_are_in_their_reservations_group(pool_home: Path, cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_possible()
    room = Path(Groups(cgroup).make("alice", os.getuid(), "", None, None))
    monkeypatch.setenv(CGROUP_VARIABLE, str(room))
    try:
        LocalProvisioner().up(nodes=1, procs=2)
        mine = monarch_nb.reserve("mine", procs=2, preload=[])
        group = room / mine.id
        group.mkdir()
        mine.mesh.restart()
        assert mine.mesh.run(WHERE).values == [f"/{cgroup.name}/rooms/alice/{mine.id}"] * 2
        daemons = mine.mesh.run(
            "import subprocess\n"
            "child = subprocess.run(['setsid', '--fork', 'sh', '-c', 'echo $$; exec sleep 1000 >&- 2>&-'], stdout=-1)\n"
            "int(child.stdout)"
        )
        end_group(group, TIMEOUT_S)
        assert all(gone(pid) for pid in daemons.values)
        mine.release()
    finally:
        LocalProvisioner().down(force=True)
        for each in (room, cgroup / "rooms", cgroup):
            end_group(each, TIMEOUT_S)


def test_what_dies_by_its_reservations_limit_is_said_to(
    pool_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's files are stand-ins that the rank writes as the kernel would: no machine of ours limits memory."""
    monkeypatch.setenv(CGROUP_VARIABLE, str(tmp_path))
    try:
        LocalProvisioner().up(nodes=1, procs=1)
        mine = monarch_nb.reserve("mine", procs=1, preload=[])
        group = tmp_path / mine.id
        group.mkdir()
        for name, text in (("procs", ""), ("events", "oom 0\noom_kill 0\n"), ("max", f"{64 << 30}\n")):
            (group / f"{'cgroup' if name == 'procs' else 'memory'}.{name}").write_text(text)
        mine.mesh.restart()
        with pytest.raises(RunFailed, match="on this node reached their limit of 64G together"):
            mine.mesh.run(KILLED.format(group=str(group)))
        assert "out of memory: the reservation's processes" in str(mine.mesh.status()[0].death)
        mine.release()
        with pytest.raises(UsageError, match="can not limit memory or CPUs of a reservation: an allocator --as"):
            monarch_nb.reserve("limited", procs=1, preload=[], memory="64G", cpus=8)
        assert monarch_nb.list_reservations() == []
    finally:
        LocalProvisioner().down(force=True)
