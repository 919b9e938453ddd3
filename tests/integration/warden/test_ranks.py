"""In a room, ranks and scripts are in the cgroup of their reservation before their first cell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.config import CGROUP_VARIABLE
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.warden.groups import Groups, end_group
from wardens import gone, skip_unless_possible

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
        end_group(group)
        assert all(gone(pid) for pid in daemons.values)
        mine.release()
    finally:
        LocalProvisioner().down(force=True)
        for each in (room, cgroup / "rooms", cgroup):
            end_group(each)
