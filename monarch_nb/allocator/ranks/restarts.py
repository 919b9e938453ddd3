"""Restarting ranks: fresh ones take the places of others, which end meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from monarch_nb.allocator.ranks.forking import Forking
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.runs.runs import Runs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.supervisor import RankProcess, Supervisor
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.proto import run_pb2


class Restarts:
    """Replaces live ranks of a node, and ends those that were replaced.

    Attributes:
        ending: what ends them.
    """

    def __init__(
        self, state: NodeState, records: Records, supervisor: Supervisor, runs: Runs, forking: Forking
    ) -> None:
        self._state, self._records, self._supervisor = state, records, supervisor
        self._runs, self._forking = runs, forking
        self._restarting = asyncio.Lock()
        self.ending: set[asyncio.Task[None]] = set()

    async def restart(self, mesh_id: str, ranks: Iterable[int]) -> Mesh:
        """Replace ranks by fresh ones, which answer while the old ones still end; those that hold GPUs end before their
        successors start."""
        chosen = sorted(ranks)
        async with self._restarting:
            mesh = self._state.mesh(mesh_id)
            if unknown := [rank for rank in chosen if rank not in mesh.ranks]:
                raise UsageError(f"no such ranks here: {unknown}")
            incarnations = {rank: self._next_incarnation(mesh_id, rank) for rank in chosen}
            old = [process for rank in chosen if (process := self._supervisor.ranks.get((mesh_id, rank)))]
            busy = [process for process in old if mesh.ranks[process.rank].running]
            self._retire(old)
            for rank in chosen:
                self._runs.apply(self._state.rank_restarting(mesh_id, rank))
            self._supervisor.kill(busy)
            try:
                if any(mesh.ranks[rank].gpu_indices for rank in chosen):
                    await self._supervisor.end(old)
                await self._forking.fork_ranks(mesh, chosen, incarnations)
            except (MonarchNbError, OSError) as error:
                for rank in chosen if self._state.meshes.get(mesh_id) is mesh else ():
                    death = run_pb2.Death(likely_cause=f"could not be restarted: {error}")
                    self._runs.apply(self._state.rank_died(mesh_id, rank, death))
                raise
            finally:
                self._end_meanwhile(old)
        return mesh

    def _retire(self, ranks: list[RankProcess]) -> None:
        """Make room for the successors of ranks. From now on nothing but what is written down here tells the allocator
        after this one to end them: it is on disk together with the successors."""
        self._supervisor.retire(ranks)
        self._records.save_leaving(ranks)

    def _end_meanwhile(self, ranks: list[RankProcess]) -> None:
        async def end() -> None:
            await self._supervisor.end(ranks)
            self._records.delete_leaving(ranks)

        task = asyncio.create_task(end())
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    def _next_incarnation(self, mesh_id: str, rank: int) -> int:
        if process := self._supervisor.ranks.get((mesh_id, rank)):
            return process.record.incarnation + 1
        return self._records.next_incarnation(mesh_id, rank)
