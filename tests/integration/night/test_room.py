"""A local pool that takes another shape for a reservation, in a script and in a notebook."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, client
from monarch_nb import attach, list_reservations, reserve
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.errors import CapacityError
from monarch_nb.provision import daemons
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()


def pids() -> list[int | None]:
    return [node.pid for node in local.nodes()]


def test_one_that_holds_nothing_becomes_what_is_asked_for_and_then_grows(pool_home: Path) -> None:
    local.up(2, 1)
    said: list[str] = []
    wide = reserve("wide", procs=2, progress=said.append)
    assert "the local pool held nothing: now 1 node × 2 procs" in said
    wide.mesh.run("kept = rank")
    [first] = pids()

    said.clear()
    beside = reserve("beside", nodes=2, procs=1, progress=said.append)
    assert "the local pool has grown: now 3 nodes × 2 procs" in said
    assert {info.host for info in beside.mesh.status()} == {"node1", "node2"}
    assert (pids()[0], wide.mesh.run("kept").values) == (first, [0, 1]), "nothing was taken from anybody"

    before = pids()
    with pytest.raises(CapacityError, match=r"(?s)wide \(.*\) holds 2 procs.*release all reservations"):
        reserve("wider", procs=3)
    assert pids() == before


@pytest.mark.parametrize("is_up", [True, False])
def test_two_at_once_get_what_they_ask_for(pool_home: Path, is_up: bool) -> None:
    if is_up:
        local.up(1, 1)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(reserve, "first", nodes=1, procs=2)
        second = threads.submit(reserve, "second", nodes=2, procs=2)
    assert first.result().mesh.run("rank").values == [0, 1]
    assert second.result().mesh.run("rank").values == [0, 1, 2, 3]


WAITS = """
monarch_nb.reserve("wide", procs=2, preload=[], wait=True, progress=print)
print("has it")
input()
"""


def test_one_that_is_free_again_takes_the_shape_that_is_waited_for(pool_home: Path) -> None:
    dev = reserve("dev", procs=1)
    with client(WAITS) as wide:
        while not wide.line().startswith("1st in line: dev ("):
            pass
        dev.release()
        while wide.line() != "has it":
            pass
        assert [reply.node.procs for _, reply in call(pool_named(None).ask())] == [2]
        attach("wide").release()


def test_nodes_do_not_end_under_somebody_who_reserves(pool_home: Path) -> None:
    local.up(1, 1)
    said: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor() as threads:
        with local.steady():
            wide = threads.submit(reserve, "wide", procs=2, progress=said.put)
            assert said.get(timeout=TIMEOUT_S) == "waiting: others are reserving"
            narrow = reserve("narrow", procs=1)
        with pytest.raises(CapacityError, match=r"narrow \(.*\) holds 1 proc"):
            wide.result()
    assert narrow.mesh.run("rank").values == [0]


def test_ctrl_c_leaves_it_as_it_was_or_up(pool_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = local.up(1, 1)

    def interrupted_when(says: str) -> Callable[[str], None]:
        return lambda text: os.kill(os.getpid(), signal.SIGINT) if text.startswith(says) else None

    with pytest.raises(KeyboardInterrupt):
        reserve("half", procs=2, progress=interrupted_when("the pool holds nothing"))
    assert local.nodes() == before

    end = daemons.Watched.end

    def interrupted(*arguments: object) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(daemons.Watched, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reserve("half", procs=2)
    monkeypatch.undo()
    assert list_reservations() == []
    [again] = pids()
    assert again not in (None, before[0].pid)
    assert reserve("whole", procs=2).mesh.run("rank").values == [0, 1]
    assert pids() == [again]


def test_a_reservation_that_leaves_slots_free_gets_the_nodes_that_are_missing(pool_home: Path) -> None:
    reserve("wide", nodes=2, procs=2).release()
    dev = reserve("dev", nodes=2, procs=1)
    said: list[str] = []
    assert dev.grow(3, progress=said.append).joined == ("node2",)
    assert "the local pool has grown: now 3 nodes × 2 procs" in said
    beside = reserve("beside", nodes=3, procs=1)
    assert dev.grow(5, mesh="all").joined == ("node3", "node4")
    assert dev.meshes["all"].run("rank").values == [0, 1, 2, 3, 4]
    dev.release()
    beside.release()


def test_one_that_somebody_made_so_stays_so_while_something_is_held(pool_home: Path) -> None:
    local.up(2, 2)
    dev = reserve("dev", nodes=2, procs=1)
    with pytest.raises(CapacityError, match=r"the pool 'local' has no other.*; monarch-nb up --nodes 3 adds nodes"):
        dev.grow(3)
    with pytest.raises(CapacityError, match="monarch-nb up --nodes 3 adds nodes"):
        reserve("beside", nodes=3, procs=1)
    local.up(3)
    assert dev.grow(3).joined == ("node2",)
    dev.release()
