"""Nodes of a reservation that are lost, come back, are replaced, join and leave; and clients that die meanwhile."""

from __future__ import annotations

import pytest

from cluster import Cluster
from monarch_nb.client.connections.bridge import call
from monarch_nb.errors import CapacityError, NodeUnreachable, RunFailed, UsageError
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.notebook.output.logs import shown_logs
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_reattach import Recorder

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
    leave_out = f"-t {format_ranks(others)} leaves rank {number} out"
    ways = f"{leave_out}; %mesh release works without it"  # the pool has no other node
    with pytest.raises(NodeUnreachable, match=f"node{number} unreachable since .*, with rank {number}: {ways}"):
        mesh.run("rank")
    with pytest.raises(NodeUnreachable, match=leave_out):
        mesh.restart()
    endless = mesh.select(others).submit("await sleep(3600)")
    cluster.sleep(1)
    assert sorted(endless.interrupt().stopped) == others
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


def test_a_release_needs_one_node_that_answers(make: MakeCluster) -> None:
    cluster = make(4)
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    dev.mesh.run("kept = rank + 3")
    lost = [node for node in cluster.nodes if node.alive]
    for node in lost:
        node.cut()
    with pytest.raises(NodeUnreachable, match=r"dev is not released, because no node of it answers .*: when one does"):
        dev.release()
    with pytest.raises(NodeUnreachable, match="%mesh release dev needs one that answers, and %mesh reserve dev --rep"):
        ann.reserve("dev")
    assert ann.reserve("dev", replace=True).mesh.run(KEPT).values == [None], "it begins anew on others"
    assert not dev.mesh.core.is_over
    for node in lost:
        node.mend()
    cluster.until(lambda: ann.list() == ["dev", "dev"])
    assert dev.mesh.run("kept").values == [3, 4], "nothing of it was lost"
    assert ann.attach("dev").id != dev.id, "the name is the newer one's"
    lost[1].cut()
    assert "then node" in "; ".join(map(str, dev.release()))
    lost[1].mend()
    cluster.until(lambda: ann.list() == ["dev"] and sum(living(cluster)) == 1)


def test_one_that_another_replaces_has_ended_for_who_still_has_it(make: MakeCluster) -> None:
    ann = make(2).client()
    before = ann.reserve()
    again = ann.reserve("dev", replace=True)
    assert (before.mesh.core.is_over, again.mesh.core.is_over) == (True, False)
    assert ann.list() == ["dev"]


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


def test_meshes_beside_are_there_again_on_the_new_node(make: MakeCluster) -> None:
    cluster = make(3, 2)
    dev = cluster.client().reserve(nodes=2)
    call(dev.meshes.spawn(dev.meshes.addresses, {"procs": 1}, "beside"))
    beside = dev.meshes["beside"]
    dev.mesh.run("kept = 3")
    beside.run("kept = rank + 5")
    [replaced] = dev.replace("node0")
    assert str(replaced).startswith("node2 has the place of node0: rank 0, rank 0 of beside are new there")
    assert [info.host for info in beside.status()] == ["node2", "node1"]
    assert beside.run(KEPT).values == [None, 6]
    assert dev.mesh.run(KEPT).values == [None, 3]


def test_two_clients_that_reach_different_nodes_both_replace_the_others(make: MakeCluster) -> None:
    """When all nodes answer again, they keep one of both lists, and give back what the other one had."""
    cluster = make(4)
    first, second, third, fourth = cluster.nodes
    cluster.client().reserve(nodes=2)
    for node in (second, fourth):
        node.kill()
    [replaced] = cluster.client().attach().replace()
    assert str(replaced).startswith("node2 has the place of node1")
    for node in (first, third):
        node.kill()
    for node in (second, fourth):
        node.start()
    [replaced] = cluster.client().attach().replace()
    assert str(replaced).startswith("node3 has the place of node0")
    for node in (first, third):
        node.start()
    cluster.until(lambda: sum(living(cluster)) == 2)
    after = cluster.client()
    assert after.list() == ["dev"]
    dev = after.attach()
    assert dev.node_names in (["node0", "node2"], ["node3", "node1"])
    assert dev.mesh.run("rank").values == [0, 1]


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
    assert cluster.client().reserve().mesh.run("kept").values == [3], "what reserved it still means it"
    dev.stop_mesh("grown")
    assert cluster.client().attach().nodes == 3, "nodes without ranks are held all the same"
    assert dev.grow(3).joined == (), "the mesh alone is missing"
    dev.stop_mesh("grown")
    assert str(dev.shrink(1)).startswith("dev has 1 node: ")
    assert living(cluster) == [1, 0, 0]
    assert dev.mesh.run("kept").values == [3]


def test_a_mesh_that_is_stopped_ends_on_a_node_that_was_away(make: MakeCluster) -> None:
    cluster = make(2)
    dev = cluster.client().reserve()
    dev.grow(2)
    second = cluster.nodes[1]
    second.kill()
    assert dev.stop_mesh("grown") == ["node1"]
    assert second.alive
    second.start()
    cluster.until(lambda: not second.alive)
    assert list(cluster.client().attach().meshes) == ["main"]
    assert dev.shrink(1).left == ("node1",)


def test_no_node_is_given_back_where_ranks_are(make: MakeCluster) -> None:
    cluster = make(3, 2)
    dev = cluster.client().reserve(nodes=2)
    call(dev.meshes.spawn(dev.meshes.addresses[1:], {"procs": 1}, "beside"))
    beside = dev.meshes["beside"]
    dev.mesh.run("kept = rank + 3")
    beside.run("kept = 5")
    with pytest.raises(UsageError, match="node1 would be given back, but main, beside have ranks there: main stays on"):
        dev.shrink(1)
    dev.grow(3)
    with pytest.raises(UsageError, match="node2 would be given back, but grown has ranks there: %mesh stop grown ends"):
        dev.shrink(2)
    cluster.nodes[2].kill()
    with pytest.raises(UsageError, match="grown has ranks there"):
        dev.shrink(2)
    cluster.nodes[2].start()
    dev.stop_mesh("grown")
    assert dev.shrink(2).left == ("node2",)
    assert (dev.mesh.run("kept").values, beside.run("kept").values) == ([3, 4], [5]), "others live on"


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


def test_a_new_client_attaches_without_a_lost_node_and_releases(make: MakeCluster) -> None:
    cluster = make(3)
    cluster.client().reserve(nodes=3).mesh.run("kept = rank; print('kept')")
    cluster.nodes[0].cut()
    dev = cluster.client().attach()
    assert [info.state for info in dev.mesh.status()] == ["unreachable", "idle", "idle"]
    assert dev.mesh.select([1, 2]).run("kept").values == [1, 2]
    shown = "\n".join(map(str, shown_logs(dev.mesh, 1, None)))
    assert "[1-2] kept" in shown
    assert "what rank 0 wrote is not here: node0 " in shown.splitlines()[-1]
    assert str(dev.release()[0]).startswith("node0 does not answer: its ranks go on until it does")
    cluster.nodes[0].mend()
    cluster.until(lambda: living(cluster) == [0, 0, 0])


@pytest.mark.parametrize("moment", ["Release", "Release is done"])
def test_a_client_dies_while_it_releases(make: MakeCluster, moment: str) -> None:
    cluster = make(2)
    ann, after = cluster.client(), cluster.client()
    dev = ann.reserve(nodes=2)
    ann.dies_at(moment)
    ann.does(dev.release)
    cluster.until(lambda: living(cluster) == [0, 0])
    assert after.list() == []


@pytest.mark.parametrize("moment", ["Spawn", "Spawn is done"])
def test_a_client_dies_while_it_makes_a_mesh_beside(make: MakeCluster, moment: str) -> None:
    """It is there on all nodes, or on none; what was there is as it was."""
    cluster = make(2, 2)
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    dev.mesh.run("kept = rank")
    ann.dies_at(moment)
    ann.does(lambda: call(dev.meshes.spawn(dev.meshes.addresses, {"procs": 1}, "beside")))
    cluster.sleep(60)
    assert living(cluster) == [1, 1]
    again = cluster.client().attach()
    assert list(again.meshes) == ["main"]
    assert again.mesh.run("kept").values == [0, 1]


@pytest.mark.parametrize("moment", ["Restart", "Restart is done"])
def test_a_client_dies_while_it_restarts_ranks(make: MakeCluster, moment: str) -> None:
    cluster = make(2)
    ann = cluster.client()
    mesh = ann.reserve(nodes=2).mesh
    ann.dies_at(moment)
    ann.does(mesh.restart)
    cluster.sleep(60)
    after = cluster.client().attach().mesh
    assert after.run("rank").values == [0, 1]
    assert living(cluster) == [1, 1]


def test_all_nodes_are_away_while_a_cell_runs(make: MakeCluster) -> None:
    cluster = make(3)
    dev = cluster.client().reserve(nodes=2)
    run = dev.mesh.submit("await sleep(3600)", listener=(recorder := Recorder()))
    cluster.sleep(1)

    def said() -> str:
        return "\n".join(recorder.notices.values())

    first, second, _ = cluster.nodes
    first.cut()
    cluster.until(lambda: "until then -t leaves them out; %mesh replace puts a free node" in said())
    second.cut()
    cluster.until(lambda: "%mesh reserve dev --replace begins anew on others" in said())
    assert said().count("the output of their ranks follows here when they answer again") == 1, "once for both nodes"
    assert "%mesh replace" not in said(), "no node is left that could be told of another"
    with pytest.raises(NodeUnreachable, match=r"'dev' is held, but node0 .*, node1 .* do not answer: its ranks go on"):
        dev.mesh.interrupt()
    for node in (first, second):
        node.mend()
    cluster.until(lambda: not any(recorder.notices.values()))
    assert sorted(run.interrupt().stopped) == [0, 1]


def test_a_release_is_whole_although_the_node_that_was_told_dies_before_it_hears_of_the_silent_one(
    make: MakeCluster,
) -> None:
    cluster = make(2)
    ann = cluster.client()
    held = ann.reserve(nodes=2)
    silent, told = cluster.nodes
    silent.cut()
    cluster.wire.fates[ann.life, "Release is done"] = told.kill
    with pytest.raises(NodeUnreachable, match="release it again"):
        ann.life.call(held.release)
    told.start()
    silent.mend()
    cluster.until(lambda: not any(node.node.state.leases or node.alive for node in cluster.nodes), within_s=90)
    assert ann.list() == []
