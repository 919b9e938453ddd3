"""A node is lost: the others are of use, also to a new client, and the reservation is released without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from integration.live import TIMEOUT_S, client, eventually, lives, pids_of, started
from lab import Lab
from monarch_nb import list_reservations, reserve
from monarch_nb.client.connections import tree
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.errors import NodeUnreachable
from monarch_nb.ground.rank_sets import format_ranks
from network import Network


def test_a_reservation_is_released_without_a_lost_node(lab: Lab, network: Callable[[int], Network]) -> None:
    hosts = network(3).hosts
    for host in hosts:
        lab.start(host, procs=1)
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    pids, lost = pids_of(dev.mesh), hosts[2]
    lost.swallow()
    assert dev.mesh.select([0, 1]).run("rank").values == [0, 1]
    said = "; ".join(map(str, dev.release()))
    assert said.startswith(f"{lost.name} does not answer: its ranks go on until it does, for then {hosts[0].name} and ")
    assert not list_reservations()
    assert lives(pids[2])
    for allocator in lab.allocators[:2]:
        allocator.process.kill()
        allocator.process.wait()
    for host in hosts[:2]:
        lab.start(host, procs=1)  # what they are to say is not lost with them
    lost.pass_on()
    eventually(lambda: not lives(pids[2]))
    eventually(lambda: [node.procs_free for node in call(pool_named(None).described())] == [1, 1, 1])
    assert reserve("again", nodes=3, procs=1, preload=[]).mesh.run("rank").values == [0, 1, 2], "it is as if new"


@pytest.mark.parametrize("direct_nodes", [tree.DIRECT_NODES, 1], ids=["direct", "tree"])
@pytest.mark.parametrize("number", [0, 1])
def test_cells_run_on_the_others_whichever_node_is_lost(
    apart: Lab, monkeypatch: pytest.MonkeyPatch, number: int, direct_nodes: int
) -> None:
    monkeypatch.setattr(tree, "DIRECT_NODES", direct_nodes)
    mesh = reserve("dev", nodes=3, procs=1, preload=[]).mesh
    before = mesh.run("kept = rank")
    lost, others = apart.allocators[number].host, [rank for rank in range(3) if rank != number]
    assert lost is not None
    lost.swallow()
    run = mesh.select(others).run("kept")
    assert run.values == others
    assert run.number > before.number
    eventually(lambda: not mesh.core.is_node_up(number))
    leave_out = f"-t {format_ranks(others)} leaves rank {number} out"
    ways = f"{leave_out}; %mesh replace puts a free node in its place, %mesh release works without it"
    with pytest.raises(NodeUnreachable, match=f"{lost.name} unreachable since .*, with rank {number}: {ways}"):
        mesh.run("rank")
    with pytest.raises(NodeUnreachable, match=leave_out):
        mesh.restart()
    other_run, _ = started(mesh.select(others[1]), "import time\nwhile True: time.sleep(0.01)")
    other_run.cancel()
    assert other_run.wait(TIMEOUT_S)
    lost.pass_on()
    eventually(lambda: mesh.status()[number].state == "idle")
    last = mesh.run("kept")
    assert last.values == [0, 1, 2]
    assert last.number > other_run.number


def test_a_new_client_attaches_without_a_lost_node_and_releases(apart: Lab) -> None:
    lost = apart.allocators[0].host
    assert lost is not None
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    dev.mesh.run("kept = rank; print('kept')")
    pids = pids_of(dev.mesh)
    lost.swallow()
    code = """
from monarch_nb import attach
from monarch_nb.notebook.output.logs import shown_logs
dev = attach("dev")
states = {info.rank: info for info in dev.mesh.status()}
print([states[rank].state for rank in range(3)], states[0].absence)
print(dev.mesh.select([1, 2]).run("kept").values)
print(*shown_logs(dev.mesh, 1, None), sep="; ")
print(*dev.release(), sep="; ")
"""
    with client(code) as other:
        told = [other.line() for _ in range(4)]
        other.finish()
    assert told[0].startswith(f"['unreachable', 'idle', 'idle'] {lost.name} unreachable since ")
    assert told[1] == "[1, 2]"
    assert told[2].endswith(f"; [1-2] kept; {lost.name} does not answer: what rank 0 wrote is not here")
    assert told[3].startswith(f"{lost.name} does not answer: its ranks go on until it does")
    assert not list_reservations()
    lost.pass_on()
    eventually(lambda: not lives(pids[0]))
