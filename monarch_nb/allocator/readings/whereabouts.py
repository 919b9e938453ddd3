"""Where the ranks of runs that last are: in which collective, at which line. Asked while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Mapping

from monarch_nb.allocator.readings.asking import Asking
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.config import cadence
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

LASTS_S = cadence(1.5)
"""Shorter runs are not asked about."""


class Whereabouts:
    """Asks the control threads of a node's ranks, each once a second at most.

    Args:
        ranks: the living processes, as they come and go.
    """

    def __init__(self, state: NodeState, ranks: Mapping[tuple[str, int], RankProcess]) -> None:
        self._state, self._ranks = state, ranks
        self._asking = Asking(wire.ControlRequest(where=wire.GetWhere()), keep=False)

    async def refresh(self) -> None:
        """Ask those ranks that have been running for a while, and wait a little for their answers."""
        running = self._running()
        self._asking.forget_others(running)
        await self._asking.ask(running)

    def _running(self) -> dict[int, RankProcess]:
        started_before = time.time() - LASTS_S
        running = {}
        for process in self._ranks.values():
            mesh = self._state.meshes.get(process.home_id)
            slot = mesh.ranks.get(process.rank) if mesh else None
            run_id = process.mesh_id if process.record.script_of else slot.running if slot else ""
            run = mesh.runs.get(run_id) if mesh else None
            if run is not None and run.started_at < started_before:
                running[process.record.process.pid] = process
        return running

    def of(self, pid: int, run_id: str) -> run_pb2.Where | None:
        """Return where a process is in the run that it executes, if that is known."""
        asked = self._asking.of(pid)
        if asked is None or asked.reply is None or asked.reply.where.run_id != run_id:
            return None
        return asked.reply.where
