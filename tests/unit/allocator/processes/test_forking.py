"""Restarts: fresh ranks answer while those before them end, unless they hold what the fresh ones need."""

from __future__ import annotations

import asyncio

import pytest

from monarch_nb.errors import MeshNotFound
from monarch_nb.proto import state_pb2
from unit.allocator.idle_node import (
    MESH,
    NodeWithoutProcesses,
    assert_nothing_left,
    reserve,
    spawn,
    spawn_request,
)


class TestRestart:
    async def test_fresh_ranks_are_ready_while_those_before_them_end(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        old = list(node.supervisor.ranks.values())
        node.supervisor.may_end.clear()
        mesh = await node.forking.restart(MESH, [0, 1])
        assert [rank for rank, slot in sorted(mesh.ranks.items()) if slot.ready] == [0, 1]
        assert node.supervisor.leaving == old
        left = node.records.database.read("leaving", state_pb2.RankRecord)
        assert sorted(record.token for _, record in left) == sorted(process.record.token for process in old)
        node.supervisor.may_end.set()
        await asyncio.gather(*node.forking.ending)
        node.records.flush()
        assert (node.supervisor.leaving, list(node.records.database.read("leaving", state_pb2.RankRecord))) == ([], [])

    async def test_those_with_gpus_end_first(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.state.meshes[MESH].ranks[1].gpu_indices = [0]
        node.supervisor.may_end.clear()
        node.supervisor.asked.clear()
        restart = asyncio.create_task(node.forking.restart(MESH, [0, 1]))
        await node.supervisor.asked.wait()
        assert (len(node.supervisor.leaving), len(node.supervisor.ranks)) == (2, 0)
        node.supervisor.may_end.set()
        await restart
        assert len(node.supervisor.ranks) == 2

    async def test_a_release_waits_for_those_that_are_leaving(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_end.clear()
        await node.forking.restart(MESH, [0, 1])
        node.supervisor.asked.clear()
        await node.supervisor.asked.wait()
        node.supervisor.asked.clear()
        release = asyncio.create_task(node.leases.release("r"))
        await node.supervisor.asked.wait()
        left = len(node.supervisor.leaving)
        node.supervisor.may_end.set()
        assert (await release, left) == (2, 4)
        assert_nothing_left(node)

    async def test_a_mesh_that_has_taken_the_place_of_its_own_meanwhile_is_left_alone(
        self, node: NodeWithoutProcesses
    ) -> None:
        """A client whose reservation was released may make another with the same ids."""
        await spawn(node)
        node.supervisor.may_fork.clear()
        node.supervisor.asked.clear()
        restart = asyncio.create_task(node.forking.restart(MESH, [0, 1]))
        await node.supervisor.asked.wait()
        await node.leases.release("r")
        reserve(node)
        again = asyncio.create_task(node.forking.spawn(spawn_request()))
        while MESH not in node.state.meshes:
            await asyncio.sleep(0)
        node.supervisor.may_fork.set()
        with pytest.raises(MeshNotFound, match="released while its ranks were being started"):
            await restart
        mesh = await again
        assert [(slot.ready, slot.death) for slot in mesh.ranks.values()] == [(True, None)] * 2
