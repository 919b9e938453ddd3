"""Reservations that end by themselves: out of time, or used by nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from monarch_nb.client.connections.events import TIME_NOTICE, Notice
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.errors import ReservationExpired, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from unit.cluster.conftest import MakeCluster

HOUR_S = 3600.0


def test_all_nodes_release_when_the_time_is_up(make: MakeCluster) -> None:
    cluster = make(2, 2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2, procs=2, time="1h")
    cluster.sleep(HOUR_S - 5)
    assert dev.mesh.run("rank").values == [0, 1, 2, 3]
    assert ann.list() == ["dev"]
    cluster.sleep(10)
    assert ann.list() == []
    assert [node.alive for node in cluster.nodes] == [[], []]
    for ask in (dev.status, dev.mesh.status, lambda: dev.mesh.run("rank"), ann.attach):
        with pytest.raises(ReservationExpired, match=r"dev was released at .*: its time of 1 h was up; %mesh reserve"):
            ask()
    assert ann.reserve(nodes=2, procs=2).id != dev.id


def test_it_is_said_before_and_taken_back_by_an_extension(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2, time="1h")
    said: list[str] = []
    noticed: list[str] = []
    dev.add_time_listener(said.append)
    run = dev.mesh.submit(
        "await sleep(7200)",
        listener=lambda event: isinstance(event, Notice) and event.key == TIME_NOTICE and noticed.append(event.text),
    )
    cluster.sleep(HOUR_S / 2)
    assert not said
    cluster.sleep(HOUR_S / 2 - 5)
    assert said == noticed
    assert "dev will be released at" in said[-1]
    late: list[str] = []
    again = cluster.client().attach()
    again.add_time_listener(late.append)
    cluster.settle()
    assert "dev will be released at" in "".join(late), "who comes late hears it, too"
    assert dev.extend("2h") == pytest.approx(2 * HOUR_S + 4, abs=1)
    cluster.settle()
    assert said[-1] == noticed[-1] == ""
    assert run.result() == [None, None]
    assert dev.status().time_s == 3 * HOUR_S


def test_ranks_save_before_the_time_is_up_and_again_after_it_was_extended(make: MakeCluster, tmp_path: Path) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2, time="1h")
    dev.mesh.autosave(tmp_path, at_end=True, before="10m")
    ranks = [rank for node in cluster.nodes for rank in node.alive]
    for times in (1, 2):
        cluster.sleep(HOUR_S - 5)
        assert [rank.told.count("save_now") for rank in ranks] == [times, times]
        dev.extend("1h")


def test_time_goes_on_while_an_allocator_is_down(make: MakeCluster) -> None:
    cluster = make(2)
    ann = cluster.client()
    ann.reserve(nodes=2, time="1h")
    first, second = cluster.nodes
    first.kill()
    cluster.sleep(HOUR_S + 5)
    assert not second.alive
    assert first.alive, "nobody ends its ranks"
    first.start()
    cluster.sleep(5)
    assert not first.alive
    assert ann.list() == []


def test_one_that_nobody_uses_is_released(make: MakeCluster) -> None:
    cluster = make(2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2, idle="10m")
    cluster.sleep(HOUR_S)
    assert ann.list() == ["dev"], "a client that is attached uses it"
    dev.detach()
    cluster.sleep(590)
    assert ann.list() == ["dev"]
    cluster.sleep(20)
    assert ann.list() == []
    with pytest.raises(ReservationExpired, match="nobody used it for 10 min"):
        ann.attach()


def test_a_client_that_is_killed_uses_nothing(make: MakeCluster) -> None:
    cluster = make(2)
    ann = cluster.client()
    ann.reserve(nodes=2, idle="10m")
    ann.kill()
    cluster.sleep(615)
    assert cluster.client().list() == []


def test_a_cell_on_another_node_keeps_it(make: MakeCluster) -> None:
    cluster = make(2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2, idle="10m")
    dev.mesh.select([1]).submit("await sleep(3600)")
    cluster.settle()
    ann.kill()
    after = cluster.client()
    cluster.sleep(HOUR_S)
    assert after.list() == ["dev"]
    cluster.sleep(1210)
    assert after.list() == []


def test_a_node_that_does_not_answer_may_be_busy(make: MakeCluster) -> None:
    cluster = make(2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2, idle="10m")
    cluster.nodes[1].kill()
    dev.detach()
    cluster.sleep(HOUR_S)
    assert [len(node.alive) for node in cluster.nodes] == [1, 1]
    cluster.nodes[1].start()
    cluster.sleep(1210)
    assert [len(node.alive) for node in cluster.nodes] == [0, 0]


def test_one_whose_time_is_up_on_a_node_is_in_nobodys_way(make: MakeCluster) -> None:
    """The other node's clock is a little behind."""
    cluster = make(2, 2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2, time="1h")
    ended = pb.Ended(reservation_id=dev.id, name="dev", why="its time of 1 h was up")
    ann.life.call(pool_named, dev.pool).note_end(ended)
    assert ann.reserve(procs=2).id != dev.id


def test_what_is_held_keeps_its_limit_and_one_without_has_none(make: MakeCluster) -> None:
    cluster = make(1, 2)
    ann = cluster.client()
    dev, free = ann.reserve(time=60), ann.reserve("free")
    dev.extend("1h")
    assert ann.reserve(time=60).status().time_s == 60 + HOUR_S
    assert free.status().left == ""
    with pytest.raises(UsageError, match="free has no time limit"):
        free.extend("2h")


def test_leases_do_not_follow_the_clock_on_the_wall(make: MakeCluster) -> None:
    cluster = make()
    ann = cluster.client()
    dev = ann.reserve(time="30m", idle="20m")
    told = time.time

    def goes_on() -> None:
        cluster.sleep(5)
        assert 1780 < (dev.status().time_left_s or 0) < 1800
        assert dev.mesh.run("rank").values == [0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: told() + HOUR_S)
        goes_on()
    goes_on()  # it has jumped back
    assert ann.list() == ["dev"]
