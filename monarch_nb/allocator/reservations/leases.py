"""The leases of a node: given, confirmed, and given back with all meshes and everything that ran on their slots."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.allocator.reservations.expiry import Expiry
from monarch_nb.allocator.reservations.queue import Queue
from monarch_nb.allocator.state.lease import released
from monarch_nb.config import MAIN_MESH, MONARCH_MESH, patience
from monarch_nb.errors import LimitReached, MeshNotFound, MonarchNbError, PoolError, ReservationNotFound, UsageError
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.rpc.status import error_to_json

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.supervisor import RankProcess
    from monarch_nb.allocator.runs.sessions import Session

_log = logging.getLogger(__name__)
_audit_log = logging.getLogger("monarch_nb.audit")
"""Who reserved what, who was let in, what ended and how, which runs were whose. Its lines are in the allocator's log:
whoever keeps and rotates that does so with them."""


def audit(event: str, **facts: object) -> None:
    """Log a line of JSON, which nobody's names can break; texts and lists that are empty are left out of it."""
    said = {key: fact for key, fact in facts.items() if fact not in ("", [])}
    _audit_log.info(json.dumps({"event": event, **said}))


RELEASED = "the mesh was released while the run went on"
GONE = "its mesh was released or stopped while the message was under way"


class Leases:
    """Leases slots of a node to reservations.

    Attributes:
        expiry: ends those that end by themselves.
        releases: those that go on, by reservation.
        queue: who waits for slots.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._paths = node, node.paths
        self._state, self._records, self._supervisor = node.state, node.records, node.supervisor
        self._sessions, self._gpu_locks = node.sessions, node.gpu_locks
        self._checks = Tasks()
        self.releases: dict[str, asyncio.Task[int]] = {}
        self.queue = Queue(node.state, node.sessions)
        self.expiry = Expiry(node)

    # ---- to have ----

    async def resume(self) -> None:
        """Go on with what the allocator before this one leased. Meanwhile another one of this machine may have leased
        GPUs that nobody used any more: who had them before has them no longer."""
        if self._state.gpus:
            async with self._gpu_locks.turn():
                self._gpu_locks.tidy()
                for reservation_id, lease in self._state.leases.items():
                    try:
                        self._gpu_locks.take(reservation_id, lease)
                    except PoolError as error:  # a GPU is lost, say; its other ranks are worth more than an order
                        _log.warning("%s holds GPUs without a lock: %s", lease.request.name, error)
                held = self._state.gpus_held = self._gpu_locks.held_by_others()
            for reservation_id, lease in list(self._state.leases.items()):
                if lost := sorted(held.keys() & lease.gpu_indices):
                    who = held[lost[0]].owner
                    self.start_release(
                        reservation_id, f"GPU {lost[0]} was leased to {who} while this node's allocator was dead"
                    )
        self.expiry.resume()

    def attach(self, session: Session, reservation_id: str) -> None:
        """A client uses a reservation: it is told what there is to say of it, and who waits for such slots."""
        self.expiry.attach(session, reservation_id)
        if self.queue.waiting_for(reservation_id):
            self.queue.tell(session, reservation_id)

    # ---- to hold ----

    async def take(self, request: pb.ReserveRequest, caller: str) -> list[int]:
        """Lease slots as `reserve` does, unless that is more than somebody may hold.

        The first node of a reservation has counted all that it is to have. So on the others nobody waits for the count,
        which shows then whether the first one was told the truth.

        Args:
            caller: from where that is asked for.

        Raises:
            LimitReached: and its like, as `NodeState.reserve` raises.
        """
        reservation_id = request.reservation_id
        # No other allocator of this machine takes the GPUs that are free meanwhile.
        async with self._gpu_locks.turn() if request.gpus else contextlib.nullcontext():
            if request.gpus:
                self._state.gpus_held = self._gpu_locks.held_by_others()
            is_new = reservation_id not in self._state.leases
            indices = self.reserve(request)
        if not is_new:
            return indices
        audit(
            "reserved",
            reservation=request.reservation_id,
            name=request.name,
            owner=request.owner,
            node_rank=request.node_rank,
            nodes=request.nodes,
            procs=request.procs,
            gpus=request.gpus,
            gpu_indices=indices,
            time_s=request.time_s,
            notebook=request.notebook,
            **{"from": caller},
        )
        if request.node_rank and not request.lease_id:
            self._checks.start(self._check_later(reservation_id))
        else:
            try:
                await self._node.fairness.check(reservation_id)
            except MonarchNbError:
                await self.release(reservation_id)
                raise
        return indices

    async def _check_later(self, reservation_id: str) -> None:
        try:
            await self._node.fairness.check(reservation_id)
        except LimitReached as error:
            await self.release(reservation_id, str(error))

    def close(self) -> None:
        """Check nothing any more."""
        self._checks.cancel()

    def reserve(self, request: pb.ReserveRequest) -> list[int]:
        """Lease slots provisionally, in their turn; return the GPUs' indices."""
        is_new = request.reservation_id not in self._state.leases
        lease = self._state.reserve(request)
        if is_new:
            try:
                self._gpu_locks.take(request.reservation_id, lease)
            except BaseException:
                self._state.release(request.reservation_id)
                raise
        self.expiry.watch(request.reservation_id)
        self._records.save_lease(request.reservation_id)
        return lease.gpu_indices

    def confirm(self, request: pb.ConfirmRequest) -> None:
        """Keep a provisional lease."""
        self._state.confirm(request.reservation_id, request.nodes, seconds_since_boot())
        self.has_changed(request.reservation_id)

    def has_changed(self, reservation_id: str) -> None:
        """A lease that is kept is another one now: write it down."""
        self.expiry.watch(reservation_id)
        self._records.save_lease(reservation_id)
        self._gpu_locks.note(reservation_id, self._state.lease(reservation_id))

    def extend(self, reservation_id: str, time_s: float) -> None:
        """Set the time limit."""
        self.expiry.extend(reservation_id, time_s)
        self._gpu_locks.note(reservation_id, self._state.lease(reservation_id))

    def change_files(self, request: files_pb2.ChangeFilesRequest) -> files_pb2.ReservationFiles:
        """Do what a client says of a reservation's files, and tell all that are attached."""
        files = self._state.lease(request.reservation_id).change_files(request)
        self._records.save_lease(request.reservation_id)
        for session in self._sessions:
            if request.reservation_id in session.attached:
                session.send(files_changed=pb.FilesChanged(reservation_id=request.reservation_id, files=files))
        return files

    def share(self, request: pb.ShareRequest) -> None:
        """Let somebody else see or use a reservation, or no longer."""
        self._state.share(request)
        self._records.save_lease(request.reservation_id)

    def check_held(self, reservation_id: str) -> None:
        """Raise ReservationNotFound when a reservation is not held, or about to be so no longer."""
        self._state.lease(reservation_id)
        if reservation_id in self.releases:
            raise ReservationNotFound("the reservation was released while its ranks were being started")

    # ---- to give back ----

    async def stop_mesh(self, mesh_id: str, by: str) -> None:
        """End a mesh beside the main one, whatever this node has of it; fine when it has nothing.

        Args:
            by: who has asked for it.

        Raises:
            UsageError: it is the main mesh, which ends with its reservation.
        """
        record = self._records.meshes.get(mesh_id)
        if record is not None and record.spec.name == MAIN_MESH:
            raise UsageError("the main mesh of a reservation can not be stopped: release the reservation")
        why = f"the mesh was stopped by {by}"
        if record is not None and (lease := self._state.leases.get(record.spec.reservation_id)):
            why = f"{record.spec.name} of {lease.request.name} was stopped by {by}, and its ranks have ended"
        is_monarch = record is not None and record.spec.name == MONARCH_MESH
        again = "monarch() of the reservation" if is_monarch else "the cell that made it (%mesh grow, spawn_procs)"
        why += f"; {again} makes it again"
        self._state.stop(mesh_id, why)
        if record is not None:
            await self.end_meshes([mesh_id], why)

    async def end_meshes(self, meshes: list[str], why: str = RELEASED) -> list[RankProcess]:
        """End meshes with all that is theirs; return the ranks that this ended. Whoever waits for runs is told why."""
        ranks = [rank for rank in self._supervisor.ranks.values() if rank.home_id in meshes]
        replaced = [rank for rank in self._supervisor.leaving if rank.home_id in meshes]
        for mesh_id in meshes:
            self.close_mesh(mesh_id, why)  # first, so that ranks which are being started find that it is gone
        await self._supervisor.end([*ranks, *replaced], patience_s=patience(1.0))
        self._records.delete_ranks(ranks)
        for mesh_id in meshes:
            await self.remove_mesh(mesh_id)
        return ranks

    async def release(
        self, reservation_id: str, why: str = "", lease_id: str = "", *, by: str = "", asked_at: float = 0.0
    ) -> int:
        """End everything of a reservation and give its slots back; return how many ranks ended. Arguments as of
        ReleaseRequest."""
        lease = self._state.leases.get(reservation_id)
        if lease_id and lease is None:
            self._state.release(reservation_id, lease_id)
            return 0
        if lease_id and lease is not None and lease.request.lease_id != lease_id:
            return 0
        return await asyncio.shield(self.start_release(reservation_id, why, by, asked_at))

    def start_release(
        self, reservation_id: str, why: str = "", by: str = "", asked_at: float = 0.0
    ) -> asyncio.Task[int]:
        """Begin to release, unless that is going on. Nobody is told of the end of what was never confirmed."""
        if reservation_id not in self.releases:
            lease = self._state.leases.get(reservation_id)
            if lease is not None and (why or (by and lease.confirmed)):
                self._records.save_end(self.expiry.end(reservation_id, why=why, by=by, asked_at=asked_at))
            task = self.releases[reservation_id] = asyncio.create_task(self._release(reservation_id))
            task.add_done_callback(lambda _: self.releases.pop(reservation_id))
        return self.releases[reservation_id]

    async def _release(self, reservation_id: str) -> int:
        self.expiry.forget(reservation_id)
        meshes = [m for m, record in self._records.meshes.items() if record.spec.reservation_id == reservation_id]
        ranks = await self.end_meshes(meshes)
        if lease := self._state.leases.get(reservation_id):
            await self._node.files.release(reservation_id, lease.request.name)
            ended = self._state.ended.get(reservation_id, pb.Ended())
            audit(
                "expired" if ended.why else "released",
                reservation=reservation_id,
                name=lease.request.name,
                owner=lease.request.owner,
                why=ended.why or ended.by,
            )
        self._state.release(reservation_id)
        self._gpu_locks.release(reservation_id)
        self._records.forget("lease", reservation_id)
        self.queue.slots_are_free()
        return sum(not rank.record.script_of for rank in ranks)

    # ---- meshes ----

    def close_mesh(self, mesh_id: str, why: str = RELEASED) -> None:
        """From now on the mesh is not known; whoever waits for a run of it is told why."""
        if mesh := self._state.meshes.pop(mesh_id, None):
            ended = self._state.ended.get(mesh.spec.reservation_id)
            gone = error_to_json(released(ended) if ended else MeshNotFound(why))
            for run in mesh.runs.values():
                self._node.audience.dismiss(run, gone)
            if lease := self._state.leases.get(mesh.spec.reservation_id):
                self._node.kept_logs.note(mesh, lease.request)
        self._records.close_mesh(mesh_id)
        self._node.mail.mesh_is_gone(mesh_id, GONE)

    async def remove_mesh(self, mesh_id: str) -> None:
        """End a mesh's store, and forget the mesh, whose ranks have ended."""
        await self._supervisor.end_store(mesh_id)
        self._records.delete_mesh(mesh_id)
        self._remove_files(self._paths.mesh(mesh_id))

    def _remove_files(self, directory: Path) -> None:
        self._node.kept_logs.keep(directory)
        self._node.files.removal.remove(directory)

    def remove_unknown_meshes(self) -> None:
        """An allocator was killed while it spawned or released them."""
        self._node.files.removal.resume()
        with contextlib.suppress(FileNotFoundError):
            for directory in self._paths.meshes.iterdir():
                if directory.name not in self._records.meshes:
                    self._remove_files(directory)
