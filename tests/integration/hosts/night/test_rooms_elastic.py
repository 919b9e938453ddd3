"""Reservations on several nodes with gateways: they sync files, make process groups, and get and give back nodes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.hosts.elastic import SUM, WORLD, free, kill
from integration.hosts.lab import Lab
from integration.hosts.night.test_gateway import PLAIN, room_of
from integration.hosts.people import Person
from integration.live import eventually, lives, pids_of
from monarch_nb import reserve
from monarch_nb.client.connections import tree


@pytest.fixture
def three(lab: Lab) -> Lab:
    for _ in range(3):
        lab.start(procs=1, flags=PLAIN)
    return lab


@pytest.mark.slow
def test_collectives_files_growing_and_shrinking(three: Lab, tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("width = 8\n")
    dev = reserve("dev", nodes=2, procs=1, directory=tmp_path, files=tmp_path)
    mesh = dev.mesh
    assert mesh.run("import ours; ours.width").values == [8, 8]
    assert mesh.run(SUM).values == [(1, None)] * 2
    old = pids_of(mesh)

    grown = dev.grow(3, into="main")

    assert str(grown).splitlines()[0] == "dev has 3 nodes: host3 is new"
    assert mesh.run(WORLD).values == [(rank, 3, rank, None) for rank in range(3)]
    assert mesh.run(SUM).values == [(3, None)] * 3
    eventually(lambda: not any(map(lives, old.values())))
    beside = dev.shrink(node=["host1"], into="main")
    assert str(beside).startswith("dev has 2 nodes: host1 is given back")
    assert mesh.run(WORLD).values == [(0, 2, 0, None), (1, 2, 1, None)]
    assert mesh.run(SUM).values == [(1, None)] * 2, "also without the node that had the store"
    eventually(lambda: sorted(free()) == [0, 0, 1])
    dev.release()
    eventually(lambda: free() == [1, 1, 1])


@pytest.mark.slow
def test_a_dead_node_is_replaced(three: Lab) -> None:
    dev = reserve("dev", nodes=2, procs=1)
    dead = three.allocators[1]
    kill(dead)
    os.kill(room_of(dead, "alice"), signal.SIGKILL)
    [replaced] = dev.replace("host2")
    assert str(replaced).startswith("host3 has the place of host2")
    assert dev.node_names == ["host1", "host3"]
    assert dev.mesh.run(SUM).values == [(1, None)] * 2
    three.start(procs=1, number=2, directory=dead.paths.directory, flags=[*PLAIN, "--listen", dead.address])
    eventually(lambda: free() == [0, 1, 0])  # it has learnt that it has no place any more
    assert dev.mesh.run(SUM).values == [(1, None)] * 2
    dev.release()


INTO = """
import monarch_nb
from monarch_nb.client.connections import tree
tree.DIRECT_NODES = tree.FAN_OUT = {direct}
try:
    print(monarch_nb.attach("dev").mesh.run("rank").values)
except monarch_nb.MonarchNbError as error:
    print(error)
"""


@pytest.mark.slow
def test_runs_go_through_a_tree_for_the_owner_only(three: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "DIRECT_NODES", 1)
    monkeypatch.setattr(tree, "FAN_OUT", 1)  # each is above the next one
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    run = dev.mesh.run("print('rank', rank); rank * 2")
    assert run.values == [0, 2, 4]
    assert [line.text for line in dev.mesh.logs()] == ["rank 0\n", "rank 1\n", "rank 2\n"]
    os.kill(room_of(three.allocators[1], "alice"), signal.SIGKILL)
    eventually(lambda: dev.mesh.run("rank").values == [0, 1, 2])
    dev.share("bob", "run")
    bob = Person(three, "bob", tmp_path)
    [said] = bob.run(INTO.format(direct=1))
    assert "only the owner can run cells on a mesh of so many nodes" in said
    assert bob.run(INTO.format(direct=16)) == ["[0, 1, 2]"]
    dev.release()
