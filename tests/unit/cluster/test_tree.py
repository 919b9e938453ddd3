"""Meshes on more nodes than a client talks to: runs go through a tree of allocators, and what comes back is whole."""

from __future__ import annotations

import pytest

from cluster import Cluster
from monarch_nb.client.connections import tree
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import NodeUnreachable
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_reattach import Recorder

NODES = 7
CELL = "print('before', rank)\nawait sleep(60)\nprint('after', rank)\nrank"
WHOLE = {rank: f"before {rank}\nafter {rank}\n" for rank in range(NODES)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with many nodes: the client talks to the first of them only, and each passes things on to two."""
    monkeypatch.setattr(tree, "DIRECT_NODES", 2)


def held(cluster: Cluster) -> Mesh:
    mesh = cluster.client().reserve(nodes=NODES).mesh
    mesh.run("pass")
    assert mesh.core.tree is not None
    return mesh


def test_a_cell_of_all_arrives_whole(make: MakeCluster) -> None:
    for seed in range(5):
        mesh = held(make(NODES, seed=seed, shuffled=True))
        recorder = Recorder()
        assert mesh.submit(CELL, listener=recorder).result() == list(range(NODES))
        assert recorder.texts == WHOLE
        assert mesh.select([3, 6]).run("rank").values == [3, 6]


@pytest.mark.parametrize("dead", [0, 1, 3], ids=["first", "inner", "leaf"])
def test_an_allocator_is_killed_while_ranks_print(make: MakeCluster, dead: int) -> None:
    """Those below it are adopted: they print on while it is away. Nothing is lost or doubled, then and afterwards."""
    cluster = make(NODES)
    mesh = held(cluster)
    recorder = Recorder()
    run = mesh.submit(CELL, listener=recorder)
    cluster.sleep(5)
    cluster.nodes[dead].kill()
    cluster.sleep(70)
    assert {rank for rank, text in recorder.texts.items() if "after" in text} == set(range(NODES)) - {dead}
    with pytest.raises(NodeUnreachable, match=f"node{dead} does not answer|node{dead} unreachable"):
        mesh.run("rank")
    cluster.nodes[dead].start()
    assert run.result() == list(range(NODES))
    assert recorder.texts == WHOLE
    assert mesh.run("rank").values == list(range(NODES))


def test_cells_run_on_the_others_while_the_first_allocators_are_away(make: MakeCluster) -> None:
    """Another node gives runs their numbers meanwhile."""
    cluster = make(NODES)
    mesh = held(cluster)
    before = mesh.run("kept = rank")
    cluster.nodes[0].kill()
    others = list(range(1, NODES))
    run = mesh.select(others).run("kept")
    assert run.values == others
    assert run.number > before.number
    endless = mesh.select(others).submit("await sleep(3600)")
    cluster.sleep(5)
    assert sorted(endless.interrupt().stopped) == others
    cluster.nodes[1].kill()
    assert mesh.select(others[1:]).run("kept").values == others[1:], "the next one takes over"
    for node in cluster.nodes[:2]:
        node.start()
    last = mesh.run("kept")
    assert last.values == list(range(NODES))
    assert last.number > endless.number


def test_an_allocator_that_is_cut_off_is_found_again(make: MakeCluster) -> None:
    cluster = make(NODES)
    mesh = held(cluster)
    recorder = Recorder()
    run = mesh.submit(CELL, listener=recorder)
    cluster.sleep(5)
    cluster.nodes[1].cut()
    cluster.sleep(120)
    cluster.nodes[1].mend()
    assert run.result() == list(range(NODES))
    assert recorder.texts == WHOLE


def test_the_next_client_gets_what_the_first_one_left(make: MakeCluster) -> None:
    cluster = make(NODES)
    ann = cluster.client()
    ann.reserve(nodes=NODES).mesh.submit(CELL)
    cluster.sleep(5)
    ann.kill()
    mesh = cluster.client().attach().mesh
    [run] = mesh.running()
    recorder = Recorder()
    assert mesh.attach_run(run.id, from_start=True, listener=recorder).result() == list(range(NODES))
    assert recorder.texts == WHOLE
