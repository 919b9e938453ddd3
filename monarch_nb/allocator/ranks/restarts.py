"""Restarting ranks: fresh ones take the places of others, which end meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb.allocator.recovery.database import leaving_key, rank_key
from monarch_nb.allocator.serving.describe import describe_ranks
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node


class Restarts:
    """Replaces live ranks of a node, and ends those that were replaced.

    Attributes:
        ending: what ends them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._restarting = asyncio.Lock()
        self.ending: set[asyncio.Task[None]] = set()

    async def restart(self, mesh_id: str, ranks: Iterable[int]) -> list[pb.Rank]:
        """Replace ranks by fresh ones, which answer while the old ones still end; those that hold GPUs end before their
        successors start."""
        node = self._node
        mesh = node.state.mesh(mesh_id)
        chosen = sorted(ranks)
        if unknown := [rank for rank in chosen if rank not in mesh.ranks]:
            raise UsageError(f"no such ranks here: {unknown}")
        async with self._restarting:
            incarnations = {rank: self._next_incarnation(mesh_id, rank) for rank in chosen}
            old = [process for rank in chosen if (process := node.supervisor.ranks.get((mesh_id, rank)))]
            busy = [process for process in old if mesh.ranks[process.rank].running]
            self._retire(old)
            for rank in chosen:
                node.apply(node.state.rank_restarting(mesh_id, rank))
            node.supervisor.kill(busy)
            try:
                if any(mesh.ranks[rank].gpu_indices for rank in chosen):
                    await node.supervisor.end(old)
                await node.fork_ranks(mesh, chosen, incarnations)
            except (MonarchNbError, OSError) as error:
                for rank in chosen:
                    death = run_pb2.Death(likely_cause=f"could not be restarted: {error}")
                    node.apply(node.state.rank_died(mesh_id, rank, death))
                raise
            finally:
                self._end_meanwhile(old)
        return describe_ranks(node, mesh, chosen)

    def _retire(self, ranks: list[RankProcess]) -> None:
        """Make room for the successors of ranks. From now on nothing but what is written down here tells the allocator
        after this one to end them: it is on disk together with the successors."""
        self._node.supervisor.retire(ranks)
        for process in ranks:
            self._node.database.put("leaving", leaving_key(process.record), process.record)

    def _end_meanwhile(self, ranks: list[RankProcess]) -> None:
        async def end() -> None:
            await self._node.supervisor.end(ranks)
            for process in ranks:
                self._node.database.delete("leaving", leaving_key(process.record))
            self._node.flush_soon()

        task = asyncio.create_task(end())
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    def end_left(self) -> None:
        """An allocator was killed while it ended ranks that had successors."""
        left = [record for _, record in self._node.database.read("leaving", state_pb2.RankRecord)]
        processes.kill_trees([(record.process, record.token) for record in left])
        self._node.database.delete_prefix("leaving", "")

    def _next_incarnation(self, mesh_id: str, rank: int) -> int:
        if process := self._node.supervisor.ranks.get((mesh_id, rank)):
            return process.record.incarnation + 1
        for key, record in self._node.database.read("rank", state_pb2.RankRecord):
            if key == rank_key(mesh_id, rank):
                return record.incarnation + 1
        return 1
