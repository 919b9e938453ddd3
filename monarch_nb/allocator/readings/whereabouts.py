"""Where the ranks of runs that last are: in which collective, at which line. Asked while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

LASTS_S = 1.5
"""Shorter runs are not asked about."""
INTERVAL_S = 0.9
WAIT_S = 0.2
"""How long to wait for answers; later ones are told the next time."""
_PATIENCE_S = 5.0
_FORGOTTEN_S = 10.0


@dataclass
class _Asked:
    task: asyncio.Task[None]
    asked_s: float
    where: run_pb2.Where | None = None


class Whereabouts:
    """Asks the control threads of a node's ranks, each once a second at most.

    Args:
        ranks: the living processes, as they come and go.
    """

    def __init__(self, state: NodeState, ranks: Mapping[tuple[str, int], RankProcess]) -> None:
        self._state, self._ranks = state, ranks
        self._asked: dict[int, _Asked] = {}
        """By pid."""

    async def refresh(self) -> None:
        """Ask those ranks that have been running for a while, and wait a little for their answers."""
        running = self._running()
        self._asked = {pid: asked for pid, asked in self._asked.items() if pid in running}
        now_s = time.monotonic()
        for pid, process in running.items():
            asked = self._asked.get(pid)
            if asked is None or (asked.task.done() and now_s - asked.asked_s > INTERVAL_S):
                before = asked.where if asked else None
                self._asked[pid] = _Asked(asyncio.create_task(self._ask(pid, process)), now_s, before)
        if tasks := [asked.task for asked in self._asked.values() if not asked.task.done()]:
            await asyncio.wait(tasks, timeout=WAIT_S)

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

    async def _ask(self, pid: int, process: RankProcess) -> None:
        reply = await process.link.control(wire.ControlRequest(where=wire.GetWhere()), _PATIENCE_S)
        if asked := self._asked.get(pid):
            asked.where = reply.where if reply is not None else None

    def of(self, pid: int, run_id: str) -> run_pb2.Where | None:
        """Return where a process is in the run that it executes, if that is known."""
        asked = self._asked.get(pid)
        if asked is None or asked.where is None or time.monotonic() - asked.asked_s > _FORGOTTEN_S:
            return None
        return asked.where if asked.where.run_id == run_id else None
