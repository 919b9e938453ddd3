"""What people may do with each other's reservations: nothing, or what the owner grants, and no longer than that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster import Client, Cluster
from monarch_nb import Reservation
from monarch_nb.client.connections.events import QUEUE_NOTICE
from monarch_nb.errors import AccessDenied
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_reattach import Recorder


@pytest.fixture
def cluster(make: MakeCluster) -> Cluster:
    return make(2)


@pytest.fixture
def dev(cluster: Cluster) -> Reservation:
    """What ann holds."""
    return cluster.client("ann").reserve(nodes=1, time="8h")


@pytest.fixture
def bob(cluster: Cluster) -> Client:
    return cluster.client("bob")


def refused(ask: Callable[[], object], why: str) -> None:
    with pytest.raises(AccessDenied, match=why):
        ask()


def test_strangers_see_whose_it_is_and_no_more(dev: Reservation, bob: Client) -> None:
    assert bob.list() == ["dev"]
    refused(bob.attach, "dev is ann's: ann can let you see what runs on it")


def test_who_may_read_runs_and_changes_nothing(dev: Reservation, bob: Client) -> None:
    dev.mesh.run("kept = 3")
    dev.share("bob")
    his = bob.attach()
    refused(lambda: his.mesh.run("rank"), "ann can let you run cells on it")
    changes: list[Callable[[], object]] = [lambda: his.grow(2), lambda: his.shrink("-1"), lambda: his.replace("node0")]
    for change in changes:
        refused(change, "dev is ann's: only ann can change which nodes it has")
    assert dev.mesh.run("kept").values == [3]


def test_who_may_run_cells_waits_in_the_same_queue(cluster: Cluster, dev: Reservation, bob: Client) -> None:
    dev.share("bob", "run")
    assert dev.shares == {"bob": "run"}
    hers = dev.mesh.submit("kept = 10\nawait sleep(60)")
    run = bob.attach().mesh.submit("kept + rank", listener=(recorder := Recorder()))
    cluster.settle()
    assert any("waits for: ann's run 1" in text for text in recorder.notices.values())
    assert [info.owner for info in dev.mesh.runs()] == ["", "bob"]
    assert run.result() == [10]
    assert hers.done


def test_only_who_holds_it_is_told_how_to_stop_what_a_cell_waits_for(
    cluster: Cluster, dev: Reservation, bob: Client
) -> None:
    dev.share("bob", "run")
    dev.mesh.submit("await sleep(60)")
    told = {}
    for reservation in (dev, bob.attach()):
        reservation.mesh.submit("rank", cell_number=3, listener=(recorder := Recorder()))
        cluster.settle()
        told[reservation] = recorder.notices[QUEUE_NOTICE]
    assert list(told.values()) == [
        "waits for: run 1 (await sleep(60)); %mesh interrupt stops it",
        "waits for: ann's run 1 (await sleep(60)); ann's run 2, cell [3] (rank)",
    ]
    assert str(dev.mesh.interrupt()).startswith("interrupted run 1")


def test_what_is_followed_ends_when_it_is_shared_no_longer_and_goes_on_when_it_is_again(
    cluster: Cluster, dev: Reservation, bob: Client
) -> None:
    hers = dev.mesh.submit("while True: print('tick'); await sleep(1)")
    over = "ann no longer shares dev with you"
    for _ in range(2):
        dev.share("bob")
        his = bob.attach()
        [run] = his.mesh.running()
        followed = his.mesh.attach_run(run.id, listener=(recorder := Recorder()))
        log = his.mesh.logs(follow=True)
        assert next(log).text == "tick\n"
        cluster.until(lambda recorder=recorder: "tick" in recorder.texts.get(0, ""))
        dev.unshare("bob")
        refused(followed.result, over)
        refused(lambda log=log: [*log], "ann")
        refused(his.status, over)
    assert not hers.done
