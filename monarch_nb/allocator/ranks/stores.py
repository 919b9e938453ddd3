"""The torch.distributed stores that a node hosts: those of meshes, and each script's own, under its run's id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from monarch_nb.allocator.leases.leases import Leases
from monarch_nb.allocator.leases.meshes import Meshes
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.state.identity import Identity
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.supervisor import Supervisor
from monarch_nb.errors import MonarchNbError, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

_log = logging.getLogger(__name__)


class Stores:
    """Starts stores, again when they die, and ends those of scripts.

    Args:
        shutdown: set when the node is to end: then none is started again.
    """

    def __init__(
        self,
        identity: Identity,
        records: Records,
        supervisor: Supervisor,
        leases: Leases,
        meshes: Meshes,
        shutdown: asyncio.Event,
    ) -> None:
        self._identity, self._records, self._supervisor = identity, records, supervisor
        self._leases, self._meshes, self._shutdown = leases, meshes, shutdown
        self._tasks: set[asyncio.Task[None]] = set()

    async def host(self, request: pb.HostStoreRequest) -> tuple[str, int]:
        """Host a mesh's store here; return where it listens."""
        self._leases.check_held(request.reservation_id)
        host = self._identity.store_host
        with self._leases.expiry.held_up(request.reservation_id):
            template = await self._supervisor.template(request.python or self._identity.python, request.preload)
            self._leases.check_held(request.reservation_id)
            pid, port = await self._supervisor.fork_store(request.mesh_id, template, host)
        record = state_pb2.MeshRecord(store_port=port, store_host=host)
        record.spec.mesh_id, record.spec.reservation_id = request.mesh_id, request.reservation_id
        record.spec.python, record.spec.preload[:] = request.python, request.preload
        record.store.CopyFrom(processes.identify(pid))
        self._records.save_mesh(record)
        try:
            self._leases.check_held(request.reservation_id)
        except ReservationNotFound:
            await self._meshes.remove(request.mesh_id)
            raise
        return host, port

    def on_death(self, mesh_id: str) -> None:
        """Ranks know the store by its port: another one takes its place there. Groups that exist go on without it."""
        if mesh_id in self._records.meshes and not self._shutdown.is_set():
            self._spawn(self._host_again(mesh_id, self._records.meshes[mesh_id]))

    async def _host_again(self, mesh_id: str, record: state_pb2.MeshRecord) -> None:
        _log.warning("the store of mesh %s ended; starting another on port %d", mesh_id, record.store_port)
        try:
            template = await self._supervisor.template(record.spec.python or self._identity.python, record.spec.preload)
            pid, _ = await self._supervisor.fork_store(mesh_id, template, record.store_host, record.store_port)
        except (MonarchNbError, OSError) as error:
            _log.error("the store of mesh %s can not be started again: %s", mesh_id, error)
            return
        if mesh_id not in self._records.meshes:  # released meanwhile
            await self._supervisor.end_store(mesh_id)
            return
        record.store.CopyFrom(processes.identify(pid))
        self._records.save_mesh(record)

    def forget(self, run_id: str) -> None:
        """A client has all results of a run: if it was a script with its store here, nobody needs that any more."""
        if run_id in self._records.meshes:
            self._spawn(self._meshes.remove(run_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
