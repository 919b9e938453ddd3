"""A node is lost: the others are of use, also to a new client, and the reservation is released without it; or all are,
and it is released when they are back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.hosts.lab import Lab
from integration.live import TIMEOUT_S, eventually, lives, pids_of
from monarch_nb import list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import NodeUnreachable


def _held() -> list[tuple[str, int]] | None:
    """What is held, and on how many nodes; None as long as no node answers."""
    try:
        return [(info.name, info.nodes) for info in list_reservations()]
    except NodeUnreachable:
        return None


def test_none_is_released_while_no_node_answers(apart: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    pids = pids_of(reserve("dev", nodes=3, procs=1, preload=[]).mesh)
    hosts = [one.host for one in apart.allocators if one.host]
    for host in hosts:
        host.swallow()
    assert main(["release", "dev"]) == 1
    assert "they held dev of yours when they last answered; its ranks go on" in capsys.readouterr().err
    hosts[1].pass_on()
    eventually(lambda: main(["release", "dev"]) == 0)
    assert not lives(pids[1])
    for host in hosts:
        host.pass_on()
    eventually(lambda: _held() == [] and not any(map(lives, pids.values())))


def test_a_new_process_calls_nodes_that_are_away_by_their_names(apart: Lab) -> None:
    reserve("dev", nodes=3, procs=1, preload=[]).detach()
    hosts = [one.host for one in apart.allocators if one.host]
    for host in hosts:
        host.swallow()
    for words in (["status"], ["logs", "dev"]):
        command = [sys.executable, "-m", "monarch_nb.cli.main", *words]
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        said = told.stdout + told.stderr
        assert told.returncode == 1, said
        for host in hosts:
            assert host.name in said
            assert host.address not in said
