"""The torch.distributed stores that a node hosts: those of meshes, and each script's own, under its run's id.

A mesh's store is hosted on its first node. When that has died, ranks find nobody there and say so; their node asks
those before it in the reservation's order, and when none has the store or can host it, hosts one itself and tells all
others. So every node comes to the same one, whichever of them notices first. Each time the store moves, the place has
a higher number, by which a node that was away learns that what it knows is old.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from monarch_nb.allocator.processes import processes
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MeshNotFound, MonarchNbError, NodeUnreachable, ReservationNotFound
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_log = logging.getLogger(__name__)

PEER_PATIENCE_S = patience(4.0)
"""How long a node may take to say where a store is; as much again for each node that it may have to ask itself."""
TELL_AGAIN_S = cadence(2.0)
"""Between attempts to reach a node that does not know yet where the store is: nothing tells when it is there again."""


class Stores:
    """Starts stores, again when they die, here or elsewhere, and ends those of scripts."""

    def __init__(self, node: Node) -> None:
        self._node, self._paths, self._identity, self._state = node, node.paths, node.identity, node.state
        self._records, self._supervisor = node.records, node.supervisor
        self._leases, self._relay = node.leases, node.files.relay
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._searched: set[str] = set()
        self._tasks = Tasks()

    def resume(self) -> None:
        """Say again what the allocator before this one may not have told everybody."""
        for record in self._records.meshes.values():
            if record.store_moves and record.HasField("store"):
                self._tell_others(record)

    async def host(self, request: pb.HostStoreRequest) -> tuple[str, int]:
        """Host a mesh's store here, unless it is here; return where it listens."""
        async with self._turn(request.mesh_id):
            known = self._records.meshes.get(request.mesh_id)
            if request.mesh_id in self._supervisor.stores:
                if known is not None:
                    return known.spec.master_host, known.spec.master_port
                await self._supervisor.end_store(request.mesh_id)  # of one that was forgotten meanwhile
            return await self._host(request)

    def free_port(self, request: pb.HostStoreRequest) -> tuple[str, int]:
        """Return where a program on this node can host a store of its own: nobody listens there now."""
        self._leases.check_held(request.reservation_id)
        host = self._identity.store_host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as free:
            free.bind((host, 0))
            return host, free.getsockname()[1]

    async def _host(self, request: pb.HostStoreRequest) -> tuple[str, int]:
        self._leases.check_held(request.reservation_id)
        host = self._identity.store_host
        with self._leases.expiry.held_up(request.reservation_id):
            template = await self._supervisor.templates.template(
                request.python or self._identity.python, request.preload
            )
            self._leases.check_held(request.reservation_id)
            pid, port = await self._supervisor.fork_store(request.mesh_id, template, host)
        record = state_pb2.MeshRecord(store_node=self._identity.node_id)
        record.spec.mesh_id, record.spec.reservation_id = request.mesh_id, request.reservation_id
        record.spec.python, record.spec.preload[:] = request.python, request.preload
        record.spec.master_host, record.spec.master_port = host, port
        record.store.CopyFrom(processes.identify(pid))
        self._records.save_mesh(record)
        try:
            self._leases.check_held(request.reservation_id)
            self._state.check_wanted(request.mesh_id)
        except (ReservationNotFound, MeshNotFound):
            await self._leases.remove_mesh(request.mesh_id)
            raise
        return host, port

    def forget(self, run_id: str) -> None:
        """A client has all results of a run: if it was a script with its store here, nobody needs that any more."""
        if run_id in self._records.meshes and run_id not in self._state.meshes:
            self._tasks.start(self._leases.remove_mesh(run_id))

    # ---- a store dies ----

    def on_death(self, mesh_id: str) -> None:
        """Ranks know the store by its port: another one takes its place there. Groups that exist go on without it."""
        if mesh_id in self._records.meshes and not self._node.shutdown.is_set():
            self._tasks.start(self._replace(mesh_id))

    async def _replace(self, mesh_id: str) -> None:
        try:
            async with self._turn(mesh_id):
                record = self._record(mesh_id)
                if record.HasField("store") and mesh_id not in self._supervisor.stores:
                    await self._host_again(record)
        except (MonarchNbError, OSError) as error:
            _log.error("the store of mesh %s can not be started again: %s", mesh_id, error)

    # ---- its node dies ----

    def on_lost(self, mesh_id: str, lost: wire.StoreLost) -> None:
        """A rank finds nobody where it believes the store to be."""
        record = self._records.meshes.get(mesh_id)
        if record is None or mesh_id in self._searched:
            return
        if (record.spec.master_host, record.spec.master_port) != (lost.host, lost.port):
            self._write_note(record)  # a full disk may have kept it from learning
            return
        self._searched.add(mesh_id)
        self._tasks.start(self._search(mesh_id, record.store_moves))

    async def _search(self, mesh_id: str, moves: int) -> None:
        try:
            await self.find(pb.FindStoreRequest(mesh_id=mesh_id, moves=moves))
        except (MonarchNbError, OSError) as error:
            _log.error("the store of mesh %s can not be found, nor hosted here: %s", mesh_id, error)
        finally:
            self._searched.discard(mesh_id)

    async def find(self, request: pb.FindStoreRequest) -> pb.StorePlace:
        """Return where a mesh's store is, as far as this node knows. If nobody answers where it knows it to be, it is
        hosted anew: by the first node that lives.

        Raises:
            MeshNotFound: this node has nothing of the mesh.
        """
        if request.only_look:
            return _place(self._record(request.mesh_id))
        async with self._turn(request.mesh_id):
            record = self._record(request.mesh_id)
            if request.moves == record.store_moves and request.mesh_id not in self._supervisor.stores:
                if record.HasField("store"):
                    await self._host_again(record)
                elif not await self._ask_those_before(record):
                    await self._host_anew(record)
            return _place(record)

    def moved(self, place: pb.StorePlace) -> None:
        """Another node hosts the store.

        Raises:
            MeshNotFound: this node has nothing of the mesh.
        """
        record = self._record(place.mesh_id)
        # Clients call nodes that are called alike "gpu1 at ADDRESS".
        names = {peer.node_id.partition(" at ")[0] for peer in self._nodes(record)}
        if not names or place.node_id in names:  # else another one has its place
            self._learn(record, place)

    async def _ask_those_before(self, record: state_pb2.MeshRecord) -> bool:
        """Return whether one of the nodes that come before this one knows where the store is, or hosts it."""
        spec = record.spec
        request = pb.FindStoreRequest(
            mesh_id=spec.mesh_id, moves=record.store_moves, reservation_id=spec.reservation_id
        )
        for number, peer in enumerate(self._nodes(record), start=1):
            if peer.node_id == self._identity.node_id:
                break
            try:
                place: pb.StorePlace = await self._relay.call(peer, "FindStore", request, number * PEER_PATIENCE_S)
            except MonarchNbError as error:
                _log.info("%s does not host the store of mesh %s: %s", peer.node_id, spec.mesh_id, error)
                continue
            if place.moves >= record.store_moves:
                self._learn(record, place)
                return True
        return False

    async def _look_around(self, record: state_pb2.MeshRecord) -> None:
        """Ask all other nodes whether the store is elsewhere."""
        spec = record.spec
        request = pb.FindStoreRequest(mesh_id=spec.mesh_id, only_look=True, reservation_id=spec.reservation_id)
        others = self._others(record)
        calls = (self._relay.call(peer, "FindStore", request, PEER_PATIENCE_S) for peer in others)
        for peer, place in zip(others, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(place, pb.StorePlace):
                self._learn(record, place)
            else:
                _log.info("%s does not know the store of mesh %s: %r", peer.node_id, request.mesh_id, place)

    async def _host_again(self, record: state_pb2.MeshRecord) -> None:
        await self._look_around(record)  # it may have moved while this allocator was away
        if record.HasField("store"):
            _log.warning("the store of mesh %s ended; starting another", record.spec.mesh_id)
            await self._fork(record, _place(record))

    async def _host_anew(self, record: state_pb2.MeshRecord) -> None:
        _log.warning("the node that hosted the store of mesh %s does not answer; hosting it here", record.spec.mesh_id)
        place = _place(record)
        place.moves, place.node_id = record.store_moves + 1, self._identity.node_id
        place.host, place.port = self._identity.store_host, 0
        await self._fork(record, place)
        self._tell_others(record)

    async def _fork(self, record: state_pb2.MeshRecord, place: pb.StorePlace) -> None:
        """Host a store at a place; port 0 is any."""
        spec = record.spec
        template = await self._supervisor.templates.template(spec.python or self._identity.python, spec.preload)
        pid, place.port = await self._supervisor.fork_store(spec.mesh_id, template, place.host, place.port)
        if self._records.meshes.get(spec.mesh_id) is not record or _order(record) > (place.moves, place.node_id):
            await self._supervisor.end_store(spec.mesh_id)  # released meanwhile, or hosted elsewhere
            return
        self._learn(record, place)
        record.store.CopyFrom(processes.identify(pid))
        self._records.save_mesh(record)
        self._records.flush()  # at once: others are told of it

    def _learn(self, record: state_pb2.MeshRecord, place: pb.StorePlace) -> None:
        """Know the store by a newer place, and have the ranks here know it."""
        if (place.moves, place.node_id) <= _order(record):
            return
        if record.HasField("store"):
            record.ClearField("store")
            self._tasks.start(self._supervisor.end_store(place.mesh_id))
        record.store_moves, record.store_node = place.moves, place.node_id
        record.spec.master_host, record.spec.master_port = place.host, place.port
        self._records.save_mesh(record)
        self._write_note(record)

    def _write_note(self, record: state_pb2.MeshRecord) -> None:
        path = self._paths.store_note(record.spec.mesh_id)
        new = path.with_suffix(".new")
        try:
            new.write_text(f"{record.spec.master_host} {record.spec.master_port}")
            new.replace(path)
        except OSError as error:
            _log.error("ranks can not be told where the store of their mesh is: %s", error)

    # ---- the other nodes ----

    def _tell_others(self, record: state_pb2.MeshRecord) -> None:
        for peer in self._others(record):
            self._tasks.start(self._tell(record, _place(record), peer))

    async def _tell(self, record: state_pb2.MeshRecord, place: pb.StorePlace, peer: files_pb2.Peer) -> None:
        """Tell a node where the store is, however long it is away, unless that changes."""
        while self._records.meshes.get(place.mesh_id) is record and _place(record) == place:
            try:
                await self._relay.call(peer, "MoveStore", place, PEER_PATIENCE_S)
                return
            except NodeUnreachable:
                await asyncio.sleep(TELL_AGAIN_S)
            except MonarchNbError as error:
                _log.info("%s need not know of the store of mesh %s: %s", peer.node_id, place.mesh_id, error)
                return

    def _nodes(self, record: state_pb2.MeshRecord) -> Sequence[files_pb2.Peer]:
        lease = self._state.leases.get(record.spec.reservation_id)
        return lease.nodes if lease is not None else []

    def _others(self, record: state_pb2.MeshRecord) -> list[files_pb2.Peer]:
        return [peer for peer in self._nodes(record) if peer.node_id != self._identity.node_id]

    def _record(self, mesh_id: str) -> state_pb2.MeshRecord:
        try:
            return self._records.meshes[mesh_id]
        except KeyError:
            raise MeshNotFound(f"{self._identity.node_id} has nothing of mesh {mesh_id}") from None

    def _turn(self, mesh_id: str) -> asyncio.Lock:
        """Return what is held while a mesh's store is looked for: nodes ask only those before them, so none waits for
        itself."""
        return self._turns.setdefault(mesh_id, asyncio.Lock())


def _place(record: state_pb2.MeshRecord) -> pb.StorePlace:
    spec = record.spec
    return pb.StorePlace(
        mesh_id=spec.mesh_id,
        moves=record.store_moves,
        node_id=record.store_node,
        host=spec.master_host,
        port=spec.master_port,
        reservation_id=spec.reservation_id,
    )


def _order(record: state_pb2.MeshRecord) -> tuple[int, str]:
    """Return what tells which of two places is the newer one."""
    return record.store_moves, record.store_node
