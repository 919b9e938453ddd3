"""Meshes that are over other nodes than before: their ranks here start anew.

That they are to is written down with the reservation's new nodes, and stays so until they are started: an allocator
that is killed in between leaves it to the next one.
"""

from __future__ import annotations

import asyncio
import logging

from monarch_nb.allocator.leases.leases import Leases
from monarch_nb.allocator.ranks.forking import Forking
from monarch_nb.allocator.ranks.restarts import Restarts
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.runs.runs import Runs
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import RESTARTED
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

_log = logging.getLogger(__name__)


class Resizing:
    """Starts the ranks of a node anew, as ranks of a world of another size and perhaps with other numbers."""

    def __init__(
        self,
        state: NodeState,
        records: Records,
        leases: Leases,
        runs: Runs,
        forking: Forking,
        restarts: Restarts,
    ) -> None:
        self._state, self._records, self._leases, self._runs = state, records, leases, runs
        self._forking, self._restarts = forking, restarts
        self._turn = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Go on with what the allocator before this one was told."""
        self._resuming = asyncio.create_task(self.settle())

    def close(self) -> None:
        """Start no more; the next allocator does."""
        if self._resuming is not None:
            self._resuming.cancel()

    async def settle(self) -> None:
        """Start all anew that is to be; return when it is done, also when somebody else does it. Ranks that could not
        be started are dead."""
        async with self._turn:
            for record in [one for one in self._records.meshes.values() if one.HasField("next_node_rank")]:
                try:
                    await self._start(record)
                except (MonarchNbError, OSError) as error:
                    _log.error("mesh %s could not be started for its new nodes: %s", record.spec.mesh_id, error)
                if now := self._records.meshes.get(record.spec.mesh_id):  # else it was released meanwhile
                    now.ClearField("next_node_rank")
                    now.ClearField("ends")
                    self._records.save_mesh(now)

    def between(self, reservation_id: str) -> list[pb.SpawnRequest]:
        """Return the parts of meshes that have ended here, and are just being started with other numbers."""
        return [
            record.spec
            for mesh_id, record in self._records.meshes.items()
            if record.spec.reservation_id == reservation_id and self.is_between(mesh_id)
        ]

    def is_between(self, mesh_id: str) -> bool:
        """Whether a mesh is one of these."""
        record = self._records.meshes.get(mesh_id)
        return record is not None and record.HasField("next_node_rank") and mesh_id not in self._state.meshes

    async def _start(self, record: state_pb2.MeshRecord) -> None:
        spec, mesh = record.spec, self._state.meshes.get(record.spec.mesh_id)
        spec.node_rank, spec.first_rank = record.next_node_rank, record.next_node_rank * spec.ranks
        if mesh is None:  # it had no ranks here
            first = pb.SpawnRequest()
            first.CopyFrom(spec)
            await self._forking.spawn(first)
        elif mesh.ranks.keys() == set(range(spec.first_rank, spec.first_rank + spec.ranks)):
            await self._restarts.restart(spec.mesh_id, mesh.ranks, record.ends)
        else:  # or the allocator before this one was killed before they were forked
            await self._renumber(record, mesh.last_number)

    async def _renumber(self, record: state_pb2.MeshRecord, last_number: int) -> None:
        """Begin with other numbers: of what had the old ones nothing stays here."""
        new = state_pb2.MeshRecord()
        new.CopyFrom(record)
        new.ClearField("store")
        self._runs.end_all(new.spec.mesh_id, record.ends or RESTARTED)
        await self._leases.end_meshes([new.spec.mesh_id])
        self._leases.check_held(new.spec.reservation_id)
        self._records.save_mesh(new)  # on disk together with the end of the old one
        request = pb.SpawnRequest()
        request.CopyFrom(new.spec)
        request.last_number = last_number
        await self._forking.spawn(request)
