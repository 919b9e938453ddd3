"""A mesh starts anew over all nodes that a reservation has then: it grows, and shrinks, into main or another one."""

from __future__ import annotations

import pytest

from cluster import Cluster
from monarch_nb import Reservation
from monarch_nb.client.connections import tree
from monarch_nb.client.connections.bridge import call
from monarch_nb.errors import CapacityError, NodeUnreachable, ReservationConflict, RunFailed, UsageError
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_nodes import living

WORLD = "rank, int(env['WORLD_SIZE']), int(env['NODE_RANK']), globals().get('kept')"
ANEW = (
    r"restarted while the run went on: (\w+ let main of dev|its mesh)( start| started) anew, on \d nodes; run the cells"
)


def new_world(size: int) -> list[tuple[int, int, int, None]]:
    return [(rank, size, rank, None) for rank in range(size)]


def test_there_and_back(make: MakeCluster) -> None:
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve()
    mesh, newest = dev.mesh, dev.mesh.run("kept = 3").number

    assert str(dev.grow(3, into="main")).splitlines() == [
        "dev has 3 nodes: node1, node2 are new",
        "main has 3 ranks, all new: run the cells that define their variables",
    ]
    assert (dev.nodes, mesh.extent) == (3, {"hosts": 3, "procs": 1})
    run = mesh.run(WORLD)
    assert run.values == new_world(3), "the mesh is the same one"
    assert run.number > newest
    assert str(dev.grow(3, into="main")) == str(dev.grow(3)) == "dev has 3 nodes already"
    with pytest.raises(UsageError, match=r"dev has 3 nodes already, .*%mesh shrink dev --nodes 2 leaves 2"):
        dev.grow(2)
    with pytest.raises(UsageError, match=r"node2 would .* rank 2 of main is there: --into main"):
        dev.shrink(2)
    with pytest.raises(ReservationConflict, match=r"3 nodes × 1 proc .%mesh shrink dev --nodes 1 changes that"):
        ann.reserve(nodes=1)

    shrunk = dev.shrink(node=["node0"], into="main")
    assert str(shrunk).startswith("dev has 2 nodes: node0 is given back\nmain has 2 ranks")
    assert mesh.run(WORLD).values == new_world(2)
    cluster.until(lambda: living(cluster) == [0, 1, 1])
    assert dev.shrink(1, into="main").left == ("node2",)
    assert dev.grow("+1", into="main").joined == ("node0",), "a node may come again"
    assert mesh.run(WORLD).values == new_world(2)


@pytest.mark.parametrize("direct_nodes", [8, 1])
def test_what_runs_ends_also_where_nodes_follow_nodes(
    make: MakeCluster, monkeypatch: pytest.MonkeyPatch, direct_nodes: int
) -> None:
    """As with many nodes, where runs are followed through the first of them."""
    monkeypatch.setattr(tree, "DIRECT_NODES", direct_nodes)
    cluster = make(3)
    dev = cluster.client().reserve(nodes=2)
    for change in (lambda: dev.grow(3, into="main"), lambda: dev.shrink(node=[0], into="main")):
        endless = dev.mesh.submit("await sleep(3600)")
        cluster.sleep(1)
        change()
        assert (dev.mesh.core.tree is None) == (direct_nodes == 8)
        with pytest.raises((RunFailed, NodeUnreachable), match=ANEW):
            endless.result()
        assert dev.mesh.run(WORLD).values == new_world(dev.nodes)


def test_logs_of_nodes_that_keep_their_number_stay(make: MakeCluster) -> None:
    dev = make(2).client().reserve()
    before = dev.mesh.run("print('before')").number
    dev.grow(2, into="main")
    dev.mesh.run("print('after')")
    assert [record.text for record in dev.mesh.logs(run=before)] == ["before\n"]
    dev.shrink(1, into="main")
    assert [record.text for record in dev.mesh.logs(ranks=0)] == ["before\n", "after\n"]


def test_meshes_beside_go_on(make: MakeCluster) -> None:
    cluster = make(3, 2)
    dev = cluster.client().reserve(nodes=2)
    call(dev.meshes.spawn(dev.meshes.addresses, {"procs": 1}, "beside"))
    beside = dev.meshes["beside"]
    beside.run("kept = rank + 5")
    dev.grow(3, into="main")
    assert beside.run("kept").values == [5, 6]
    with pytest.raises(UsageError, match=r"node1 would .* beside has ranks there: %mesh stop beside ends them"):
        dev.shrink(node=["node1"], into="main")
    dev.shrink(2, into="main")
    assert dev.mesh.run(WORLD).values == new_world(2)
    assert beside.run("kept").values == [5, 6]
    dev.stop_mesh("beside")
    dev.shrink(node=["node0"], into="main")
    assert dev.mesh.run(WORLD).values == new_world(1)


def test_a_mesh_starts_anew_on_all_nodes_that_are_held(make: MakeCluster) -> None:
    cluster = make(3, 2)
    ann = cluster.client()
    dev = ann.reserve()
    dev.mesh.run("kept = 3")
    dev.grow(2)
    grown = dev.meshes["grown"]
    grown.run("kept = rank + 5")
    with pytest.raises(UsageError, match=r"dev has grown already, on 2 nodes: --into grown .*--mesh NAME makes"):
        dev.grow(3)
    assert str(dev.grow(2, into="main")).splitlines() == [
        "dev has 2 nodes",
        "main has 2 ranks, all new: run the cells that define their variables",
    ]
    assert dev.mesh.run(WORLD).values == new_world(2)
    assert grown.run("kept").values == [5, 6], "others stay as they are"
    dev.mesh.run("kept = rank")
    assert dev.grow(3, into="grown").joined == ("node2",)
    assert grown.run(WORLD).values == new_world(3)
    assert dev.mesh.run("kept").values == [0, 1]
    with pytest.raises(UsageError, match=r"grown has ranks there: %mesh stop grown ends them, --into grown"):
        dev.shrink(2)
    assert dev.shrink(2, into="grown").left == ("node2",)
    dev.stop_mesh("grown")
    dev.grow(3)
    dev.stop_mesh("grown")
    assert dev.shrink(node=["node0", "node1"], into="main").left == ("node0", "node1")
    assert dev.mesh.run(WORLD).values == new_world(1), "on the node that had none of its ranks"
    assert cluster.client().attach().mesh.run(WORLD).values == new_world(1)


def test_more_nodes_are_waited_for(make: MakeCluster) -> None:
    cluster = make(3)
    ann, bob = cluster.client("ann"), cluster.client("bob")
    dev, other = ann.reserve(), bob.reserve("other")
    dev.mesh.run("kept = 3")
    with pytest.raises(CapacityError, match=r"(?s)no free node for dev to have 3 nodes: .*other .* holds 1 proc"):
        dev.grow(3, into="main")
    assert dev.mesh.run("kept").values == [3]
    assert living(cluster) == [1, 1, 0]
    said: list[str] = []
    work = ann.does(dev.grow, 3, into="main", wait=True, progress=said.append)
    cluster.until(lambda: any("in line" in line for line in said))
    other.release()
    work.result()
    assert dev.mesh.run(WORLD).values == new_world(3)
    with pytest.raises(CapacityError, match=r"no free node for dev to have 4 nodes: the pool .* has no other"):
        dev.grow(4, into="main")


def test_other_clients_go_on_with_all_nodes(make: MakeCluster) -> None:
    cluster = make(3)
    dev, seen = cluster.client().reserve(), cluster.client().attach()
    dev.grow(3, into="main")
    cluster.until(lambda: seen.node_names == ["node0", "node1", "node2"])
    assert seen.mesh.run(WORLD).values == new_world(3)
    dev.shrink(2, into="main")
    assert (seen.mesh.run(WORLD).values, seen.nodes) == (new_world(2), 2)


def all_are_new(dev: Reservation) -> bool:
    """Whether all three ranks are of the new world. Those of a node that was away start anew when it has learnt of it,
    also in the middle of a cell."""
    try:
        return dev.mesh.run(WORLD).values == new_world(3)
    except (RunFailed, NodeUnreachable):
        return False


@pytest.fixture(params=["joins", "is held"])
def growing(make: MakeCluster, request: pytest.FixtureRequest) -> Cluster:
    """Its node1 is no part of the reservation, or has none of main's ranks."""
    cluster = make(3)
    dev = cluster.client().reserve()
    if request.param == "is held":
        dev.grow(2)
        dev.stop_mesh("grown")
    dev.mesh.run("kept = 3")
    return cluster


@pytest.mark.parametrize("moment", ["Spawn", "ChangeMembers"])
def test_a_client_dies_before_it_is_so(growing: Cluster, moment: str) -> None:
    """In the middle of the new nodes' start, and just before the others are told."""
    doomed, dev = growing.client(), growing.client().attach()
    nodes = dev.node_names
    doomed.dies_at(moment)
    doomed.does(lambda: doomed.attach().grow(3, into="main"))
    growing.sleep(60)
    assert living(growing) == [1, 0, 0]
    assert dev.mesh.run(WORLD).values == [(0, 1, 0, 3)]
    assert growing.client().attach().node_names == nodes
    dev.grow(3, into="main")
    assert dev.mesh.run(WORLD).values == new_world(3)


def test_a_client_dies_when_it_is_so(growing: Cluster) -> None:
    """The nodes tell each other, also those that are restarted."""
    doomed = growing.client()
    doomed.dies_at("ChangeMembers is done")
    doomed.does(lambda: doomed.attach().grow(3, into="main"))
    growing.sleep(5)
    for node in growing.nodes:
        node.kill()
        node.start()
    growing.until(lambda: all_are_new(growing.client().attach()))
    assert growing.client().list() == ["dev"]


def test_a_node_that_is_away_when_it_is_so_learns_it_later(make: MakeCluster) -> None:
    cluster = make(3)
    ann = cluster.client()
    dev = ann.reserve(nodes=2)
    second = cluster.nodes[1]
    cluster.wire.fates[ann.life, "ChangeMembers"] = second.kill
    dev.grow(3, into="main")
    with pytest.raises(NodeUnreachable, match=r"node1 does not answer.*%mesh replace dev .*%mesh shrink dev"):
        dev.shrink(node=["node2"], into="main")
    second.start()
    cluster.until(lambda: all_are_new(dev))


def test_a_node_that_is_lost_later_is_replaced_or_left_out(make: MakeCluster) -> None:
    cluster = make(3)
    dev = cluster.client().reserve()
    dev.grow(2, into="main")
    dev.mesh.run("kept = rank + 3")
    first, second, _ = cluster.nodes
    second.kill()
    [replaced] = dev.replace()
    assert (replaced.old, replaced.new, replaced.ranks) == ("node1", "node2", (1,))
    assert dev.mesh.run(WORLD).values == [(0, 2, 0, 3), (1, 2, 1, None)]
    first.kill()
    assert dev.shrink(1, into="main").left == ("node0",), "those that do not answer go first"
    assert dev.mesh.run(WORLD).values == new_world(1)
    for node in (first, second):
        node.start()
    cluster.until(lambda: living(cluster) == [0, 0, 1])
    assert cluster.client().attach().node_names == ["node2"]
