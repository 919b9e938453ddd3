"""Reservations that end by themselves, with real ranks; tests/unit/cluster/test_time.py has what time does besides."""

from __future__ import annotations

import json
import re

import pytest

from integration.live import TIMEOUT_S, Gate, eventually, leave, pids_of, started
from leaks import wait_for_end
from monarch_nb.cli.main import main
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import ReservationExpired
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("without_torch")

WHY_TIME = r"was released at (\S+ )?\d\d:\d\d: its time of [\d.]+ s was up; .*, %mesh logs short shows"


def test_all_nodes_release_when_the_time_is_up(spare_pool: list[Node], gate: Gate) -> None:
    dev = reserve("short", nodes=2, procs=2, time="1h")
    pids = pids_of(dev.mesh)
    run, _ = started(dev.mesh, gate.wait)
    leave(dev, 1.0)
    with pytest.raises(ReservationExpired, match=WHY_TIME):
        run.result(timeout_s=TIMEOUT_S)
    for pid in pids.values():
        wait_for_end(pid, TIMEOUT_S)
    eventually(lambda: not list_reservations())
    with pytest.raises(ReservationExpired, match=WHY_TIME):
        attach("short")
    for node in spare_pool:
        log = NodePaths(node.directory).allocator_log.read_text()
        assert re.search(r"short was released .* its time of [\d.]+ s was up \(2 procs, held by ", log)
    reserve("short", nodes=2, procs=2)


def test_an_extension_in_a_terminal(spare_pool: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    reserve("longer", nodes=2, procs=1, time="1h")
    assert main(["extend", "longer", "1h30m"]) == 0
    assert capsys.readouterr().out.startswith("longer: 1 h 30 min more, 2 h ")
    assert main(["extend", "longer"]) == 0
    assert capsys.readouterr().out.startswith("longer: 2 h ")
    assert main(["status", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    [held] = told["reservations"]
    assert (held["time_s"], held["idle_s"], held["idle_left_s"]) == (3600 + 5400, None, None)
    assert 0 < held["time_left_s"] < held["time_s"]
    assert main(["list"]) == 0
    assert "2 h " in capsys.readouterr().out
