"""Nodes of a reservation that are lost, come back, are replaced, join and leave; and clients that die meanwhile."""

from __future__ import annotations

import pytest

from cluster import Cluster
from monarch_nb.errors import CapacityError, NodeUnreachable, RunFailed, UsageError
from unit.cluster.conftest import MakeCluster

KEPT = "globals().get('kept')"


def living(cluster: Cluster) -> list[int]:
    return [len(node.alive) for node in cluster.nodes]


@pytest.mark.parametrize("number", [0, 1])
def test_one_that_is_lost_for_a_while(make: MakeCluster, number: int) -> None:
    cluster = make(3)
    mesh = cluster.client().reserve(nodes=3).mesh
    before = mesh.run("kept = rank")
    others = [rank for rank in range(3) if rank != number]
    cluster.nodes[number].cut()
    cluster.sleep(10)
    run = mesh.select(others).run("kept")
    assert run.values == others
    assert run.number > before.number
    with pytest.raises(NodeUnreachable, match=f"node{number} unreachable since .*, with rank {number}"):
        mesh.run("rank")
    cluster.nodes[number].mend()
    cluster.until(lambda: mesh.status()[number].state == "idle")
    assert mesh.run("kept").values == [0, 1, 2]


def test_a_reservation_is_released_without_a_lost_node(make: MakeCluster) -> None:
    """The others tell it when it is back, also after they were restarted."""
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve(nodes=3)
    first, second, lost = cluster.nodes
    lost.cut()
    said = "; ".join(map(str, dev.release()))
    assert said.startswith("node2 does not answer: its ranks go on until it does; then node0 and ")
    assert ann.list() == []
    assert living(cluster) == [0, 0, 1]
    for node in (first, second):
        node.kill()
        node.start()
    lost.mend()
    cluster.until(lambda: living(cluster) == [0, 0, 0])
    assert ann.reserve("again", nodes=3).mesh.run("rank").values == [0, 1, 2]


def test_one_that_is_released_while_all_its_nodes_are_away_ends_when_they_are_back(make: MakeCluster) -> None:
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    lost = [node for node in cluster.nodes if node.alive]
    for node in lost:
        node.cut()
    said = [str(one) for one in dev.release()]
    assert all("then the next command or panel here" in line for line in said)
    assert ann.reserve("dev").mesh.run("rank").values == [0], "the name is free"
    for node in lost:
        node.mend()
    cluster.until(lambda: ann.list() == ["dev"] and sum(living(cluster)) == 1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_free_node_takes_the_place_of_a_lost_one(make: MakeCluster, number: int) -> None:
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    dev.mesh.run("kept = rank + 3")
    cut_off = dev.mesh.select([number]).submit("await sleep(3600)")
    cluster.sleep(1)
    cluster.nodes[number].cut()
    cluster.sleep(10)
    [replaced] = dev.replace()
    assert (replaced.old, replaced.new, replaced.ranks) == (f"node{number}", "node2", (number,))
    with pytest.raises(RunFailed, match=f"node2 has the place of its node, node{number}"):
        cut_off.result()
    assert dev.mesh.run(KEPT).values == [None if rank == number else rank + 3 for rank in range(2)]
    cluster.nodes[number].mend()
    cluster.until(lambda: living(cluster)[number] == 0)
    assert ann.reserve("more").mesh.run("rank").values == [0], "it can be reserved again"


def test_one_that_answers_is_replaced_by_its_name(make: MakeCluster) -> None:
    cluster = make(3)
    dev = cluster.client().reserve(nodes=2)
    dev.mesh.run("kept = rank + 3")
    with pytest.raises(UsageError, match=r"all nodes answer .*--node NAME"):
        dev.replace()
    with pytest.raises(UsageError, match="no node node9 in this reservation: it has node0, node1"):
        dev.replace("node9")
    [replaced] = dev.replace("node0")
    assert (replaced.old, replaced.new, replaced.ranks) == ("node0", "node2", (0,))
    assert dev.mesh.run(KEPT).values == [None, 4]
    cluster.until(lambda: living(cluster) == [0, 1, 1])
    [back] = dev.replace("0")
    assert (back.old, back.new) == ("node2", "node0"), "a node may come again"


def test_a_replacement_is_waited_for(make: MakeCluster) -> None:
    cluster = make(3)
    ann, bob = cluster.client("ann"), cluster.client("bob")
    dev, other = ann.reserve(nodes=2), bob.reserve("other")
    cluster.nodes[1].kill()
    with pytest.raises(CapacityError, match=r"(?s)no free node for the place of node1: .*other \(bob\) holds 1 proc"):
        dev.replace()
    said: list[str] = []
    work = ann.does(dev.replace, wait=True, progress=said.append)
    cluster.until(lambda: any("in line" in line for line in said))
    other.release()
    [replaced] = work.result()
    assert (replaced.old, replaced.new) == ("node1", "node2")


def test_other_clients_are_told_who_has_a_place_now(make: MakeCluster) -> None:
    cluster = make(3)
    one, other = cluster.client(), cluster.client()
    dev, seen = one.reserve(nodes=2), other.attach()
    dev.mesh.run("kept = rank + 3")
    cluster.nodes[0].kill()
    dev.replace()
    cluster.until(lambda: seen.node_names == ["node2", "node1"])
    assert seen.mesh.run(KEPT).values == [None, 4]


@pytest.mark.parametrize("moment", ["Spawn", "ChangeMembers"])
def test_a_client_dies_before_a_node_is_replaced(make: MakeCluster, moment: str) -> None:
    cluster = make(3)
    ann, after = cluster.client(), cluster.client()
    dev = ann.reserve(nodes=2)
    dev.mesh.run("kept = rank + 3")
    cluster.nodes[1].kill()
    ann.dies_at(moment)
    ann.does(dev.replace)
    cluster.sleep(60)
    assert living(cluster) == [1, 1, 0]
    again = after.attach()
    assert again.node_names == ["node0", "node1"]
    [replaced] = again.replace()
    assert replaced.new == "node2"
    assert again.mesh.run(KEPT).values == [3, None]


def test_a_client_dies_when_a_node_is_replaced(make: MakeCluster) -> None:
    """The nodes tell each other, one that was away and one that is restarted too."""
    cluster = make(3)
    first, lost, new = cluster.nodes
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    dev.mesh.run("kept = rank + 3")
    lost.kill()
    ann.dies_at("ChangeMembers is done")
    ann.does(dev.replace)
    cluster.sleep(60)
    for node in (first, new):
        node.kill()
        node.start()
    again = cluster.client().attach()
    assert again.node_names == ["node0", "node2"]
    assert again.mesh.run(KEPT).values == [3, None]
    assert living(cluster) == [1, 1, 1]
    lost.start()
    cluster.until(lambda: living(cluster) == [1, 0, 1])


def test_more_nodes_join_and_leave_beside_main(make: MakeCluster) -> None:
    cluster = make(3)
    dev = cluster.client().reserve()
    dev.mesh.run("kept = 3")
    assert str(dev.grow(3)).splitlines() == [
        "dev has 3 nodes: node1, node2 are new",
        "grown has 3 ranks on all of them: %%mesh --mesh grown runs a cell there; main stays as it is",
    ]
    grown = dev.meshes["grown"]
    assert grown.run("rank").values == [0, 1, 2]
    assert dev.mesh.run("kept").values == [3]
    assert living(cluster) == [2, 1, 1]
    with pytest.raises(UsageError, match="grown has ranks there"):
        dev.shrink(1)
    assert cluster.client().attach().meshes["grown"].run("rank").values == [0, 1, 2], "a new client finds it"
    dev.stop_mesh("grown")
    assert str(dev.shrink(1)).startswith("dev has 1 node: ")
    assert living(cluster) == [1, 0, 0]
    assert dev.mesh.run("kept").values == [3]


def test_more_nodes_are_waited_for(make: MakeCluster) -> None:
    cluster = make(2)
    ann, bob = cluster.client("ann"), cluster.client("bob")
    dev, other = ann.reserve(), bob.reserve("other")
    with pytest.raises(CapacityError, match=r"(?s)no free node for dev to have 2 nodes: .*other \(bob\) holds 1 proc"):
        dev.grow(2)
    said: list[str] = []
    work = ann.does(dev.grow, 2, wait=True, progress=said.append)
    cluster.until(lambda: any("in line" in line for line in said))
    other.release()
    assert work.result().joined == ("node1",)


@pytest.mark.parametrize("moment", ["Spawn", "ChangeMembers"])
def test_a_client_dies_before_nodes_have_joined(make: MakeCluster, moment: str) -> None:
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve()
    dev.mesh.run("kept = 3")
    ann.dies_at(moment)
    ann.does(dev.grow, 3)
    cluster.sleep(60)
    assert living(cluster) == [1, 0, 0]
    again = cluster.client().attach()
    assert (again.node_names, list(again.meshes)) == (["node0"], ["main"])
    again.grow(3)
    assert again.meshes["grown"].run("rank").values == [0, 1, 2]
    assert again.mesh.run("kept").values == [3]


def test_a_client_dies_when_nodes_have_joined(make: MakeCluster) -> None:
    cluster = make(3)
    ann, seen = cluster.client(), cluster.client()
    dev = ann.reserve()
    dev.mesh.run("kept = 3")
    other = seen.attach()
    ann.dies_at("ChangeMembers is done")
    ann.does(dev.grow, 3)
    cluster.until(lambda: other.node_names == ["node0", "node1", "node2"])
    again = cluster.client().attach()
    assert again.meshes["grown"].run("rank").values == [0, 1, 2]
    assert again.mesh.run("kept").values == [3]


def test_a_node_without_main_is_lost_and_replaced(make: MakeCluster) -> None:
    cluster = make(3)
    dev = cluster.client().reserve()
    dev.mesh.run("kept = 3")
    dev.grow(2)
    grown = dev.meshes["grown"]
    grown.run("kept = rank + 5")
    cluster.nodes[1].kill()
    assert cluster.client().attach().mesh.run("kept").values == [3], "main does not need it"
    [replaced] = dev.replace()
    assert str(replaced).startswith("node2 has the place of node1: rank 1 of grown is new there")
    assert grown.run(KEPT).values == [5, None]
    assert dev.mesh.run("kept").values == [3]
