"""Reserving what others want too: clients that race, wait in line, give up, and die while they wait."""

from __future__ import annotations

import re

import pytest

from cluster import Client, Cluster, Work
from monarch_nb.client.connections.events import LINE_NOTICE, Notice
from monarch_nb.errors import CapacityError, LimitReached
from unit.cluster.conftest import MakeCluster

ORDERS = 5
"""So many orders of messages are tried."""


class Waiter:
    """A client that waits in line for the reservation that is called as its person."""

    def __init__(self, cluster: Cluster, person: str, **arguments: object) -> None:
        self.said: list[str] = []
        self.client: Client = cluster.client(person)
        self.work: Work = self.client.does(
            self.client.reserve, person, wait=True, progress=self.said.append, **arguments
        )
        cluster.until(self.has_said("in line"))

    def has_said(self, part: str) -> object:
        return lambda: any(re.search(part, line) for line in self.said)

    @property
    def last(self) -> str:
        return self.said[-1]


def free(cluster: Cluster) -> list[int]:
    return [node.node.state.procs_free for node in cluster.nodes]


def test_those_who_wait_are_served_in_order(make: MakeCluster) -> None:
    for seed in range(ORDERS):
        cluster = make(2, seed=seed, shuffled=True)
        dev = cluster.client().reserve(nodes=2)
        waiters = [Waiter(cluster, person, nodes=2) for person in ("bob", "carol", "dora")]
        cluster.settle()
        assert [waiter.last[:3] for waiter in waiters] == ["1st", "2nd", "3rd"]
        held = dev
        for waiter in waiters:
            held.release()
            held = waiter.work.result()
        assert all(len(node.alive) == 1 for node in cluster.nodes)


def test_the_place_says_who_holds_what_until_when(make: MakeCluster) -> None:
    cluster = make(1, 4)
    cluster.client().reserve(procs=4, time="1h")
    waiter = Waiter(cluster, "bob", procs=4)
    assert re.fullmatch(r"1st in line: dev \(ann\) holds 4 procs until (\S+ )?\d\d:\d\d", waiter.last)


def test_whoever_is_interrupted_or_killed_leaves_the_line(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2)
    first, second, third = (Waiter(cluster, person, nodes=2) for person in ("bob", "carol", "dora"))
    first.work.interrupt()
    with pytest.raises(KeyboardInterrupt):
        first.work.result()
    cluster.until(third.has_said("2nd in line"))
    second.client.kill()
    cluster.until(third.has_said("1st in line"))
    dev.release()
    assert third.work.result().mesh.run("rank").values == [0, 1]


def test_one_that_is_killed_at_its_turn_lets_the_next_one_have_it(make: MakeCluster) -> None:
    """In the middle of reserving: what it had leased is taken back."""
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2)
    first, second = (Waiter(cluster, person, nodes=2) for person in ("bob", "carol"))
    first.client.dies_at("Confirm")
    dev.release()
    assert second.work.result().mesh.run("rank").values == [0, 1]


def test_the_line_outlives_the_node_that_keeps_it(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2)
    first, second = Waiter(cluster, "bob", nodes=2), Waiter(cluster, "carol", nodes=1)
    cluster.nodes[0].kill()
    cluster.sleep(1)
    cluster.nodes[0].start()
    dev.release()
    held = first.work.result()
    cluster.until(second.has_said(r"1st in line: bob \("))
    held.release()
    second.work.result()


def test_whoever_waits_in_vain_is_told(make: MakeCluster) -> None:
    cluster = make(2, 4)
    cluster.client().reserve(procs=4)
    bob = cluster.client("bob")
    with pytest.raises(
        CapacityError, match=r"waited 20 min in line, without success: 2 nodes × 4 procs asked for"
    ) as raised:
        bob.reserve("more", nodes=2, procs=4, wait="20m")
    assert "--wait" not in str(raised.value), "who has waited needs not be told to"
    with pytest.raises(CapacityError, match=r"^2 nodes × 5 procs asked for"):
        bob.reserve("more", nodes=2, procs=5, wait=True)
    assert bob.list() == ["dev"]


def test_a_cell_that_goes_on_says_who_waits_for_its_nodes(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2)
    told: list[str] = []
    run = dev.mesh.submit(
        "await sleep(60)",
        listener=lambda event: isinstance(event, Notice) and event.key == LINE_NOTICE and told.append(event.text),
    )
    waiter = Waiter(cluster, "bob", nodes=2)
    cluster.sleep(20)
    assert told == ["bob (2 nodes × 1 proc) waits in line for nodes like yours: %mesh release gives them back"]
    waiter.work.interrupt()
    cluster.settle()
    assert told[1:] == [""]
    run.result()


LIMITS = """contact = "carol"

[people."*"]
nodes = 1

[people.ann]
nodes = 3

[groups.vision]
members = ["ann", "bob"]
nodes = 2
"""


def test_limits_count_over_all_nodes_of_the_pool(make: MakeCluster) -> None:
    cluster = make(3, limits=LIMITS)
    ann, bob = cluster.client("ann"), cluster.client("bob")
    with pytest.raises(LimitReached, match=r"bob may have 1 node at most.* carol can raise the limit"):
        bob.reserve("two", nodes=2)
    bob.reserve("one")
    with pytest.raises(LimitReached, match=r"holds 1 node \(one 1 node\), and another takes 1 node"):
        bob.reserve("another")
    dev = ann.reserve()
    with pytest.raises(LimitReached, match=r"the group vision may have 2 nodes at most, holds 2 nodes \("):
        ann.reserve("more")
    dev.release()
    ann.reserve("more")


def test_a_first_one_that_hangs_has_its_turn_until_it_is_killed(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve(nodes=2)
    first, second = (Waiter(cluster, person, nodes=2) for person in ("bob", "carol"))
    first.client.life.is_over = True  # its connections stay
    dev.release()
    cluster.settle()
    assert free(cluster) == [1, 1]
    first.client.kill()
    second.work.result()
