"""The torch.distributed stores that a node hosts: those of meshes, and each script's own, under its run's id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.supervision import processes
from monarch_nb.errors import MonarchNbError, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_log = logging.getLogger(__name__)


class Stores:
    """Starts stores, again when they die, and ends those of scripts."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()

    async def host(self, request: pb.HostStoreRequest) -> tuple[str, int]:
        """Host a mesh's store here; return where it listens."""
        node = self._node
        node.check_held(request.reservation_id)
        with node.expiry.held_up(request.reservation_id):
            template = await node.supervisor.template(request.python or node.python, request.preload)
            node.check_held(request.reservation_id)
            pid, port = await node.supervisor.fork_store(request.mesh_id, template, node.store_host)
        record = state_pb2.MeshRecord(store_port=port, store_host=node.store_host)
        record.spec.mesh_id, record.spec.reservation_id = request.mesh_id, request.reservation_id
        record.spec.python, record.spec.preload[:] = request.python, request.preload
        record.store.CopyFrom(processes.identify(pid))
        node.save_mesh(record)
        try:
            node.check_held(request.reservation_id)
        except ReservationNotFound:
            await node.remove_mesh(request.mesh_id)
            raise
        return node.store_host, port

    def on_death(self, mesh_id: str) -> None:
        """Ranks know the store by its port: another one takes its place there. Groups that exist go on without it."""
        if mesh_id in self._node.mesh_records and not self._node.shutdown.is_set():
            self._spawn(self._host_again(mesh_id, self._node.mesh_records[mesh_id]))

    async def _host_again(self, mesh_id: str, record: state_pb2.MeshRecord) -> None:
        _log.warning("the store of mesh %s ended; starting another on port %d", mesh_id, record.store_port)
        supervisor = self._node.supervisor
        try:
            template = await supervisor.template(record.spec.python or self._node.python, record.spec.preload)
            pid, _ = await supervisor.fork_store(mesh_id, template, record.store_host, record.store_port)
        except (MonarchNbError, OSError) as error:
            _log.error("the store of mesh %s can not be started again: %s", mesh_id, error)
            return
        if mesh_id not in self._node.mesh_records:  # released meanwhile
            await supervisor.end_store(mesh_id)
            return
        record.store.CopyFrom(processes.identify(pid))
        self._node.save_mesh(record)

    def forget(self, run_id: str) -> None:
        """A client has all results of a run: if it was a script with its store here, nobody needs that any more."""
        if run_id in self._node.mesh_records:
            self._spawn(self._node.remove_mesh(run_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
