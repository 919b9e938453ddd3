"""Reservations that end by themselves: out of time, or used by nobody."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable

import pytest

import monarch_nb
from integration.live import TIMEOUT_S, Gate, eventually, leave, pids_of, started
from integration.pools import make_whole
from leaks import wait_for_end
from monarch_nb.cli.main import main
from monarch_nb.client.connections import events
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.known.lists import list_ended, list_reservations
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import ReservationExpired, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()
WHY_TIME = r"was released at (\S+ )?\d\d:\d\d: its time of [\d.]+ s was up; %mesh reserve makes a new one$"


@pytest.fixture(scope="module")
def pool(module_pool: list[Node]) -> list[Node]:
    return module_pool


@pytest.fixture(autouse=True)
def nothing_left(pool: list[Node]) -> object:
    """Every test begins and ends with a whole pool on which nothing is held."""
    yield
    make_whole()


def wait_for_release(pids: dict[int, int]) -> None:
    for pid in pids.values():
        wait_for_end(pid, TIMEOUT_S)
    eventually(lambda: not list_reservations())


def first_word(dev: Reservation) -> tuple[list[str], Callable[[str], None]]:
    """Return what a reservation says about its time, and a function that waits until it says something."""
    said: list[str] = []
    changed = threading.Condition()

    def listen(text: str) -> None:
        with changed:
            said.append(text)
            changed.notify_all()

    def wait_for(part: str) -> None:
        with changed:
            assert changed.wait_for(lambda: any(part in text for text in said), TIMEOUT_S), said

    dev.add_time_listener(listen)
    return said, wait_for


class TestTime:
    def test_all_nodes_release_when_the_time_is_up(self, gate: Gate) -> None:
        dev = reserve("short", nodes=2, procs=2, time="1h")
        info = dev.status()
        assert info.time_s == 3600
        assert info.time_left_s is not None
        assert 0 < info.time_left_s <= 3600
        _, wait_for = first_word(dev)
        pids = pids_of(dev.mesh)
        run, recorder = started(dev.mesh, gate.wait)
        leave(dev, 3.0)
        recorder.wait_for(lambda recorder: any(notice.key == "time" for notice in recorder.of(events.Notice)))
        assert "short will be released at" in next(n.text for n in recorder.of(events.Notice) if n.key == "time")
        with pytest.raises(ReservationExpired, match=WHY_TIME):
            run.result(timeout_s=TIMEOUT_S)
        wait_for("was released")
        wait_for_release(pids)
        for ask in (dev.status, dev.mesh.status, lambda: dev.mesh.run("rank"), lambda: attach("short")):
            with pytest.raises(ReservationExpired, match=WHY_TIME):
                ask()
        assert "short was released" in next(str(ended) for ended in list_ended() if ended.reservation_id == dev.id)
        for node in local.nodes():
            log = NodePaths(node.directory).allocator_log.read_text()
            assert re.search(r"short was released .* its time of [\d.]+ s was up \(2 procs, held by ", log)
        reserve("short", nodes=2, procs=2)

    def test_one_whose_time_is_up_on_a_node_is_in_nobodys_way(self) -> None:
        """The other node's clock is a little behind."""
        before = reserve("short", nodes=2, procs=1, time="1h")
        ended = pb.Ended(reservation_id=before.id, name="short", why="its time of 1 h was up")
        pool_named(before.pool).note_end(ended)
        assert reserve("short", nodes=1, procs=2).id != before.id

    def test_an_extension_adds_to_the_limit_everywhere(self, capsys: pytest.CaptureFixture[str]) -> None:
        dev = reserve("longer", nodes=2, procs=1, time=900)
        left_s = dev.extend("1h")
        assert 3600 < left_s <= 4500
        info = dev.status()
        assert info.time_s == 4500
        assert info.left.startswith("1 h")
        again = reserve("longer", nodes=2, procs=1, time=900)
        assert again.status().time_s == 4500, "what is held keeps its limit"
        assert monarch_nb.attach("longer").extend(0.5) > 3600
        capsys.readouterr()
        assert main(["extend", "longer", "1h30m"]) == 0
        assert capsys.readouterr().out.startswith("longer: 1 h 30 min more, 2 h 4")
        assert main(["extend", "longer"]) == 0
        assert capsys.readouterr().out.startswith("longer: 2 h 4")
        assert main(["status", "--json"]) == 0
        [held] = json.loads(capsys.readouterr().out)["reservations"]
        assert (held["time_s"], held["idle_s"], held["idle_left_s"]) == (4500.5 + 5400, None, None)
        assert 0 < held["time_left_s"] < held["time_s"]
        assert main(["list"]) == 0
        assert "2 h 4" in capsys.readouterr().out

    def test_what_can_not_be_extended(self) -> None:
        dev = reserve("free", procs=1)
        assert dev.status().left == ""
        with pytest.raises(UsageError, match="free has no time limit"):
            dev.extend("2h")
        for wrong in ("2", "-1h", 0):
            with pytest.raises(UsageError, match="time is a time such as"):
                dev.extend(wrong)
            with pytest.raises(UsageError, match="idle is a time such as"):
                reserve("other", procs=1, idle=wrong)


class TestIdle:
    def test_nobody_uses_it(self) -> None:
        dev = reserve("idle", nodes=2, procs=2, idle="1s")
        pids = pids_of(dev.mesh)
        assert dev.status().left == "idle 1.0 s", "an attached client uses it"
        dev.detach()
        wait_for_release(pids)
        with pytest.raises(ReservationExpired, match=r"nobody used it for 1\.0 s; %mesh reserve makes"):
            attach("idle")
