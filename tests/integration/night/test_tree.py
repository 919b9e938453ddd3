"""A mesh on more nodes than a client talks to: runs go through a tree of allocators, and what comes back is whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

import pytest

from integration.live import Gate, eventually, started
from integration.pools import PoolOfMany
from monarch_nb.client.connections import session
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.proto.run_pb2 import Where
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.slow
NODES = 7
"""The first is above the second and fifth, the second above the next two, the fifth above the last two."""
INNER = 1

local = LocalProvisioner()


@pytest.fixture(scope="module")
def dev() -> Iterator[Reservation]:
    """A reservation on many nodes of a pool of its own, in a small tree."""
    with pytest.MonkeyPatch.context() as patch, PoolOfMany(nodes=NODES, procs=1).closing() as pool, pool.in_use():
        patch.setattr(session, "FEW_NODES", 2)
        reservation = reserve("dev", nodes=NODES, procs=1, preload=())
        reservation.mesh.run("pass")
        yield reservation


def allocator_of(node: int) -> int:
    pid = local.nodes()[node].pid
    assert pid is not None
    return pid


def test_where_ranks_are_is_asked_through_the_tree(mesh: Mesh, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def control(ranks: Iterable[int], **_: object) -> dict[int, object]:
        asked.extend(ranks)
        return {}

    run, _ = started(mesh, f"{gate.wait}\nrank")
    where: dict[int, Where] = {}

    def all_answer() -> bool:
        """On a busy machine not always in the time that they get."""
        asked.clear()
        where.update(call(mesh.core.where(range(NODES), run.id)))
        return sorted(where) == list(range(NODES)) and not asked

    with monkeypatch.context() as patch:
        patch.setattr(mesh.core, "control", control)  # what a node is asked directly
        eventually(all_answer)
    assert {(at.run_id, at.line) for at in where.values()} == {(run.id, where[0].line)}
    gate.open(NODES)
    assert run.result() == list(range(NODES))


@pytest.mark.usefixtures("impatient")
def test_ranks_below_a_silent_allocator_are_asked_directly(mesh: Mesh, gate: Gate) -> None:
    """It neither passes the question on nor answers it; it is not found to be away yet."""
    run, _ = started(mesh, f"{gate.wait}\nrank")
    os.kill(allocator_of(INNER), signal.SIGSTOP)
    others = [rank for rank in range(NODES) if rank != INNER]
    try:
        eventually(lambda: sorted(call(mesh.core.where(range(NODES), run.id))) == others)
    finally:
        os.kill(allocator_of(INNER), signal.SIGCONT)
    gate.open(NODES)
    assert run.result() == list(range(NODES))
