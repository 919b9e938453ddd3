"""Releasing on a local pool whose allocators were killed: ranks end, and everything is given back."""

from __future__ import annotations

import pytest

import monarch_nb
from integration.live import TIMEOUT_S, kill, pids_of
from leaks import wait_for_end
from monarch_nb.cli.main import main
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

local = LocalProvisioner()


def test_in_a_terminal(spare_pool: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[])
    pids = pids_of(dev.mesh).values()
    dev.detach()
    for node in local.nodes():
        assert node.pid is not None
        kill(node.pid)
    assert main(["release"]) == 0
    died = "the allocators of node0, node1 died; new ones adopt their ranks\n"
    assert capsys.readouterr() == ("released dev (2 nodes × 1 proc)\n", died)
    for pid in pids:
        wait_for_end(pid, TIMEOUT_S)
    assert all(node.alive for node in local.nodes())
    assert monarch_nb.list_reservations() == []
