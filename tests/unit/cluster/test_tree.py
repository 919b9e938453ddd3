"""Meshes on more nodes than a client talks to: runs go through a tree of allocators, and what comes back is whole."""

from __future__ import annotations

import pytest

from cluster import Cluster
from monarch_nb.client.connections import session
from monarch_nb.client.connections.events import QUEUE_NOTICE
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import NodeUnreachable, RunFailed
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_reattach import Recorder

NODES = 7
CELL = "print('before', rank)\nawait sleep(60)\nprint('after', rank)\nrank"
WHOLE = {rank: f"before {rank}\nafter {rank}\n" for rank in range(NODES)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with many nodes: the client talks to the first of them only, and each passes things on to two."""
    monkeypatch.setattr(session, "FEW_NODES", 2)


def held(cluster: Cluster) -> Mesh:
    mesh = cluster.client().reserve(nodes=NODES).mesh
    mesh.run("pass")
    return mesh


def test_a_cell_of_all_arrives_whole(make: MakeCluster) -> None:
    for seed in range(5):
        mesh = held(make(NODES, seed=seed, shuffled=True))
        recorder = Recorder()
        assert mesh.submit(CELL, listener=recorder).result() == list(range(NODES))
        assert recorder.texts == WHOLE
        assert mesh.select([3, 6]).run("rank").values == [3, 6]


def test_what_ranks_raise_says_where(make: MakeCluster) -> None:
    mesh = held(make(NODES))
    with pytest.raises(RunFailed) as raised:
        mesh.run("1 / (rank % 2)")
    assert [(failure.rank, failure.host, failure.name) for failure in raised.value.failures.values()] == [
        (rank, f"node{rank}", "ZeroDivisionError") for rank in range(0, NODES, 2)
    ]


def test_runs_wait_for_each_other_on_every_node(make: MakeCluster) -> None:
    cluster = make(NODES)
    mesh = held(cluster)
    first, second = mesh.submit(CELL), mesh.submit("rank", listener=(recorder := Recorder()))
    cluster.settle()
    assert "waits for" in recorder.notices[QUEUE_NOTICE]
    assert first.result() == second.result() == list(range(NODES))
    assert recorder.notices[QUEUE_NOTICE] == ""


def test_large_values_and_what_is_listened_to_late(make: MakeCluster) -> None:
    cluster = make(NODES)
    run = held(cluster).run("print('text of', rank)\nbytes(2_000_000 + rank)")
    assert [len(value) for value in run.values] == [2_000_000 + rank for rank in range(NODES)]
    run.add_listener(recorder := Recorder())
    cluster.until(lambda: recorder.texts == {rank: f"text of {rank}\n" for rank in range(NODES)})


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
    assert {key for key, text in recorder.notices.items() if "unreachable" in text} == {f"link node{dead}"}
    with pytest.raises(NodeUnreachable, match=f"node{dead} does not answer|node{dead} unreachable"):
        mesh.run("rank")
    others = [rank for rank in range(NODES) if rank != dead]
    assert mesh.select(others).run("rank").values == others, "adopted ones take new runs as well"
    cluster.nodes[dead].start()
    assert run.result() == list(range(NODES))
    assert recorder.texts == WHOLE
    assert mesh.run("rank").values == list(range(NODES))


@pytest.mark.parametrize("few", [2, 16], ids=["tree", "one level"])
@pytest.mark.parametrize("lost", [0, 1, 3], ids=["first", "inner", "leaf"])
def test_what_runs_on_other_nodes_goes_on_while_one_is_replaced(
    make: MakeCluster, monkeypatch: pytest.MonkeyPatch, lost: int, few: int
) -> None:
    """The new node has no part of it, now or later."""
    monkeypatch.setattr(session, "FEW_NODES", few)
    cluster = make(NODES + 1)
    dev = cluster.client().reserve(nodes=NODES)
    recorder = Recorder()
    run = dev.mesh.submit(CELL, listener=recorder)
    cluster.sleep(5)
    cluster.nodes[lost].cut()
    cluster.sleep(5)
    [replaced] = dev.replace()
    assert (replaced.new, replaced.ranks) == (f"node{NODES}", (lost,))
    with pytest.raises(RunFailed, match=f"node{NODES} has the place of its node, node{lost}"):
        run.result()
    assert [failure.rank for failure in run.failures] == [lost]
    assert recorder.texts == {**WHOLE, lost: f"before {lost}\n"}
    assert dev.mesh.run("rank").values == list(range(NODES))


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


def test_an_interrupt_while_an_allocator_above_is_away(make: MakeCluster) -> None:
    cluster = make(NODES)
    mesh = held(cluster)
    run = mesh.submit("await sleep(3600)")
    cluster.sleep(1)
    cluster.nodes[1].kill()
    cluster.sleep(10)
    report = run.interrupt()
    assert sorted(report.stopped) == [rank for rank in range(NODES) if rank != 1]
    assert report.unreachable == {1: "node1"}


@pytest.mark.parametrize("is_back", [False, True], ids=["the next one goes away", "the first one is back"])
def test_who_gives_numbers_changes_between_the_look_at_it_and_the_run(
    make: MakeCluster, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    cluster = make(NODES)
    mesh = held(cluster)
    first, second = cluster.nodes[:2]
    first.kill()
    others = list(range(1, NODES))
    assert mesh.select(others).run("rank").values == others
    if is_back:
        first.start()
        cluster.until(lambda: mesh.core.is_node_up(0))
    else:
        second.kill()
        cluster.until(lambda: not mesh.core.is_node_up(1))
        others.remove(1)
    monkeypatch.setattr(type(mesh.core), "is_up", lambda *_: True)  # what a look just before had said
    assert mesh.core.first_node == 1
    assert mesh.select(others).run("rank", timeout_s=60).values == others


def test_the_first_allocator_is_killed_before_it_has_given_a_number(make: MakeCluster) -> None:
    cluster = make(NODES)
    others = list(range(1, NODES))
    run = held(cluster).select(others).submit("print('once')\nrank", listener=(recorder := Recorder()))
    cluster.nodes[0].kill()
    assert run.result() == others
    assert recorder.texts == dict.fromkeys(others, "once\n")


@pytest.mark.parametrize("chosen", [range(NODES), range(1, NODES)], ids=["all", "others"])
def test_the_first_allocator_is_killed_when_a_run_has_begun(make: MakeCluster, chosen: range) -> None:
    """It may have passed the run on and not yet said its number: no rank executes it twice, and all are heard."""
    for seed in range(5):
        cluster = make(NODES, seed=seed, shuffled=True)
        mesh = held(cluster)
        mesh.run("begun = 0")
        run = mesh.select(chosen).submit("begun += 1\nawait sleep(60)\nprint(begun)", listener=(heard := Recorder()))
        begun = (rank for node in cluster.nodes for rank in node.alive)
        cluster.until(lambda ranks=[*begun]: any(rank.runs_on["begun"] for rank in ranks))  # type: ignore[misc]
        cluster.nodes[0].kill()
        cluster.sleep(30)
        cluster.nodes[0].start()
        run.result()
        cluster.settle()
        assert heard.texts == dict.fromkeys(chosen, "1\n")


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
