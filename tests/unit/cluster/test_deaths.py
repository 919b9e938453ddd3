"""Ranks that die: said once, with the cause, to everybody; the others are as they were."""

from __future__ import annotations

import pytest

from monarch_nb.errors import RankDead, RunFailed, SpawnError
from unit.cluster.conftest import MakeCluster
from unit.cluster.test_reattach import Recorder


def test_one_dies_in_a_cell(make: MakeCluster) -> None:
    for seed in range(5):
        cluster = make(2, 2, seed=seed, shuffled=True)
        mesh = cluster.client().reserve(nodes=2, procs=2).mesh
        mesh.run("kept = rank + 3")
        run = mesh.submit("if rank == 2: die(9)\nkept", listener=(recorder := Recorder()))
        with pytest.raises(RunFailed) as raised:
            run.result()
        [failure] = raised.value.failures.values()
        assert (failure.rank, failure.kind, failure.signal) == (2, "died", 9)
        assert run.values == [3, 4, None, 6]
        assert not recorder.texts
        assert [info.state for info in mesh.status()] == ["idle", "idle", "dead", "idle"]
        with pytest.raises(RankDead, match="rank 2"):
            mesh.run("kept")
        mesh.restart([2])
        assert mesh.run("globals().get('kept')").values == [3, 4, None, 6]


def test_one_dies_while_it_is_idle_and_both_clients_hear_of_it(make: MakeCluster) -> None:
    cluster = make(2)
    one, other = cluster.client().reserve(nodes=2), cluster.client().attach()
    cluster.nodes[1].alive[0].end(6)
    cluster.settle()
    for mesh in (one.mesh, other.mesh):
        assert [info.state for info in mesh.status()] == ["idle", "dead"]
        with pytest.raises(RankDead, match="rank 1"):
            mesh.run("rank")
    one.mesh.restart()
    assert other.mesh.run("rank").values == [0, 1]


def test_nodes_whose_ranks_can_not_start_are_given_back(make: MakeCluster) -> None:
    cluster = make(2)
    cluster.nodes[1].fails_to_spawn = "no memory"
    ann = cluster.client()
    with pytest.raises(SpawnError, match="no memory"):
        ann.reserve(nodes=2)
    assert ann.list() == []
    cluster.nodes[1].fails_to_spawn = ""
    assert ann.reserve(nodes=2).mesh.run("rank").values == [0, 1]
