"""The node that hosts a mesh's store dies: another one hosts it, and all ranks learn where it is."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, kill, pids_of, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import NodePaths
from monarch_nb.proto.state_pb2 import MeshRecord
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

local = LocalProvisioner()

FORM = """
import os, torch
def form(*ranks):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo", rank=ranks.index(rank), world_size=len(ranks))
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total.item()), os.environ["MASTER_PORT"]
"""


@pytest.fixture
def dev(spare_pool: list[Node], tmp_path: Path) -> Iterator[Reservation]:
    """Two nodes × 2 procs."""
    reservation = reserve("moving", nodes=2, procs=2, directory=tmp_path)
    yield reservation
    local.up(2, 4)
    reservation.release()


def store_of(node: Node, mesh: Mesh) -> int:
    """Return the pid of the store that a node hosts."""
    with sqlite3.connect(NodePaths(node.directory).database) as database:
        rows = database.execute("SELECT body FROM record WHERE kind = 'mesh' AND key = ?", (mesh.id,))
        return MeshRecord.FromString(next(rows)[0]).store.pid


def lose(mesh: Mesh, gate: Gate, number: int, *, with_ranks: bool) -> str:
    """Kill a node of two (allocator, store, and its ranks) in the middle of a cell, in which the ranks of the other one
    then form a group; start its allocator again. Return where these found the store."""
    alone = (2, 3) if number == 0 else (0, 1)
    code = f"{gate.wait}\nif rank in {alone}: print('at', form{alone}[1])"
    run, recorder = started(mesh, code)
    node = local.nodes()[number]
    ranks = [pid for rank, pid in pids_of(mesh).items() if rank not in alone]
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSTOP)  # it forks nothing while the others are killed
    for pid in (store_of(node, mesh), *(ranks if with_ranks else [])):
        kill(pid)
    kill(node.pid)
    gate.open(4)
    recorder.wait_for_text("at ", 2)
    [port] = set(re.findall("at (\\d+)\n", recorder.text()))
    local.up(2, 4)
    assert run.wait(TIMEOUT_S)
    run.collected()
    return str(port)


def test_it_moves_as_often_as_nodes_die(dev: Reservation, gate: Gate) -> None:
    mesh = dev.mesh
    [(size, port)] = set(mesh.run(f"{FORM}\nform(0, 1, 2, 3)").values)
    assert size == 4
    for number in (0, 1, 0):
        before, port = port, lose(mesh, gate, number, with_ranks=False)
        assert port != before
        assert set(mesh.run("form(0, 1, 2, 3)").values) == {(4, port)}, "the node that was away knows where it is"


def test_fresh_ranks_find_it(dev: Reservation, gate: Gate) -> None:
    mesh = dev.mesh
    mesh.run(FORM)
    port = lose(mesh, gate, 0, with_ranks=True)
    mesh.restart([0, 1])
    mesh.select([0, 1]).run(FORM)
    assert set(mesh.run("form(0, 1, 2, 3)").values) == {(4, port)}
