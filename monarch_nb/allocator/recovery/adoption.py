"""How a restarted allocator finds the processes again that the one before it had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.supervisor import Supervisor
from monarch_nb.allocator.supervision.templates import ADOPT_WAIT_S
from monarch_nb.proto import state_pb2

NO_PID = 1 << 30
"""Above every pid that Linux gives."""


class Adoption:
    """Connects to what still lives, and ends what nobody would know.

    Args:
        state, records: what was written down, as far as it was read.
    """

    def __init__(self, state: NodeState, records: Records, supervisor: Supervisor) -> None:
        self._state, self._records, self._supervisor = state, records, supervisor
        self._adopting: list[asyncio.Task[None]] = []

    async def adopt(self, resume_scripts: Callable[[list[state_pb2.RankRecord]], None]) -> None:
        """Adopt stores, templates and ranks; those that are too busy to say hello are adopted when they do.

        Args:
            resume_scripts: told the processes before they are adopted.
        """
        self._watch_stores()
        self._end_left()
        database, meshes = self._records.database, self._records.meshes
        ranks = [record for _, record in database.read("rank", state_pb2.RankRecord)]
        known = {record.process.pid for record in ranks} | {mesh.store.pid for mesh in meshes.values()}
        for _, record in list(database.read("template", state_pb2.TemplateRecord)):
            await self._supervisor.templates.adopt(record, known)
        resume_scripts(ranks)
        self._adopting = [asyncio.create_task(self._adopt(record)) for record in ranks]
        if self._adopting:
            done, _ = await asyncio.wait(self._adopting, timeout=ADOPT_WAIT_S)
            for task in done:
                task.result()

    def _watch_stores(self) -> None:
        for mesh_id, record in self._records.meshes.items():
            if record.HasField("store"):  # else another node has it
                pid = record.store.pid if processes.is_alive(record.store) else NO_PID
                self._supervisor.watch_store(mesh_id, pid)

    def _end_left(self) -> None:
        """An allocator was killed while it ended ranks that had successors."""
        database = self._records.database
        left = [record for _, record in database.read("leaving", state_pb2.RankRecord)]
        processes.kill_trees([(record.process, record.token) for record in left])
        database.delete_prefix("leaving", "")

    async def _adopt(self, record: state_pb2.RankRecord) -> None:
        if record.HasField("death") or (record.script_of or record.mesh_id) not in self._state.meshes:
            return
        await self._supervisor.adopt_rank(record)

    def close(self) -> None:
        """Wait for nobody any more."""
        for task in self._adopting:
            task.cancel()
