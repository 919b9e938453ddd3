"""A node is lost: the others are of use, and the reservation is released without it."""

from __future__ import annotations

from collections.abc import Callable

from integration.live import eventually, lives, pids_of
from lab import Lab
from monarch_nb import list_reservations, reserve
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from network import Network


def test_a_reservation_is_released_without_a_lost_node(lab: Lab, network: Callable[[int], Network]) -> None:
    hosts = network(3).hosts
    for host in hosts:
        lab.start(host, procs=1)
    dev = reserve("dev", nodes=3, procs=1)
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
    assert reserve("again", nodes=3, procs=1).mesh.run("rank").values == [0, 1, 2], "it is as if new"
