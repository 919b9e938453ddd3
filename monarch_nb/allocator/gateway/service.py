"""What a gateway answers by itself, and what it passes on to a room.

Leases, limits, the line and the record are the gateway's own, and it answers for them as every allocator does. What
concerns ranks and files goes to the room of the reservation's owner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from monarch_nb.rpc.status import error_to_json, refuse  # isort: skip  (sets gRPC's environment before grpc is imported)

from monarch_nb.allocator.gateway.rooms import Room, Rooms
from monarch_nb.allocator.gateway.sessions import Carried
from monarch_nb.allocator.leases.record import RUN
from monarch_nb.allocator.serving.service import AllocatorService, translated
from monarch_nb.allocator.sessions.sessions import Session as ClientSession
from monarch_nb.allocator.state.rights import Right
from monarch_nb.config import PROTOCOL, patience
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.rpc.callers import Caller, caller_of, told_to_room

STATUS_S = patience(5.0)
"""So long a room may take to say what it has: whoever owns it may have stopped it."""

OWN = frozenset(
    {
        *(
            "Describe",
            "Revoke",
            "Probe",
            "Listen",
            "Status",
            "Usage",
            "Reserve",
            "Wait",
            "Confirm",
            "Release",
            "ChangeMembers",
            "StopMesh",
        ),
        *("Undertake", "Claim", "Extend", "Share", "Idle", "Session", "DescribeEnvironment", "Shutdown"),
    }
)
"""Methods that the gateway answers, although some of them ask rooms, too."""
CALLS = frozenset(
    {
        *("HostStore", "FindStore", "MoveStore", "Spawn", "Restart", "Control", "Drop", "ReadLines"),
        *("SearchLog", "ReadMetrics", "SyncTree", "ChangeFiles", "Workspace", "SeeToken", "ListFiles"),
    }
)
MAKING = frozenset({"HostStore", "Spawn"})
"""Those of CALLS that make a mesh, or the store of one."""
ANSWERING_STREAMS = frozenset({"ReadLogs", "WatchLog", "ReadBlob", "ReadFile"})
STREAMS = frozenset({"PutBlob", "PutChunks", "Mail"})
"""Methods that a room answers."""
OF_TREE = frozenset({"branches", "submit", "follow"})
"""Messages of a session that need the nodes below."""


class GatewayService(AllocatorService):
    """A gateway's service; arguments as of AllocatorService, but for one.

    Args:
        rooms: where ranks and files are.
    """

    def __init__(self, rooms: Rooms, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rooms = rooms
        self._carried: dict[asyncio.Task[Any] | None, Carried] = {}

    # ---- leases ----

    @translated
    async def Reserve(self, request: pb.ReserveRequest, context: Any) -> pb.ReserveReply:
        await self.rooms.account_of(request.owner)  # first: nothing is leased to who may not
        del request.gpu_indices[:]
        await self._node.readings.look_at_gpus(self._node.state)
        return pb.ReserveReply(gpu_indices=await asyncio.shield(asyncio.ensure_future(self._reserve(request, context))))

    async def _reserve(self, request: pb.ReserveRequest, context: Any) -> list[int]:
        is_new = request.reservation_id not in self._node.state.leases
        indices = await self._node.leases.take(request, context.peer())
        try:
            await self.rooms.reserve(request, [gpu for gpu in self._node.identity.gpus if gpu.index in indices])
        except MonarchNbError:
            if is_new:
                await self._node.leases.release(request.reservation_id)
            raise
        return indices

    @translated
    async def Confirm(self, request: pb.ConfirmRequest, context: Any) -> pb.ConfirmReply:
        room = await self.rooms.of_reservation(request.reservation_id)
        await room.call("Confirm", request, caller_of(context))
        self._node.leases.confirm(request)
        return pb.ConfirmReply()

    @translated
    async def Extend(self, request: pb.ExtendRequest, context: Any) -> pb.ExtendReply:
        reply: pb.ExtendReply = await super().Extend(request, context)
        room = await self.rooms.of_reservation(request.reservation_id)
        await room.call("Extend", request, caller_of(context))
        return reply

    @translated
    async def Share(self, request: pb.ShareRequest, context: Any) -> pb.ShareReply:
        room = await self.rooms.of_reservation(request.reservation_id)
        await room.call("Share", request, caller_of(context))
        reply: pb.ShareReply = await super().Share(request, context)
        return reply

    @translated
    async def Idle(self, request: pb.IdleRequest, context: Any) -> pb.IdleReply:
        reply: pb.IdleReply = await super().Idle(request, context)
        in_room_s = await self.rooms.idle_s(request.reservation_id)
        if in_room_s is None:
            raise NodeUnreachable("the room of the reservation's owner does not say whether something runs there")
        return pb.IdleReply(idle_for_s=min(reply.idle_for_s, in_room_s))

    @translated
    async def ChangeMembers(self, request: pb.ChangeMembersRequest, context: Any) -> pb.ChangeMembersReply:
        return await asyncio.shield(asyncio.ensure_future(self._change_both(request, caller_of(context))))

    async def _change_both(self, request: pb.ChangeMembersRequest, caller: Caller) -> pb.ChangeMembersReply:
        """First the room: while the gateway does not know it, whoever tells it tells it again."""
        reservation_id = request.reservation_id
        room = await self.rooms.of_reservation(reservation_id)
        self.rooms.name_nodes(reservation_id, request.nodes)
        new = {request.resized, request.makes} - {"", *self.rooms.meshes}
        self.rooms.meshes.update(dict.fromkeys(new, reservation_id))
        try:
            reply: pb.ChangeMembersReply = await room.call("ChangeMembers", request, caller)
        except MonarchNbError:
            for mesh_id in new:
                self.rooms.meshes.pop(mesh_id, None)
            raise
        with contextlib.suppress(ReservationNotFound):  # it has no place any more, and is released
            await self._node.members.change(request)
        if request.makes:
            self._node.undertakings.mesh_is_whole(request.makes)
        return reply

    @translated
    async def StopMesh(self, request: pb.StopMeshRequest, context: Any) -> pb.StopMeshReply:
        if request.mesh_id in self.rooms.meshes:
            room = await self.rooms.of_mesh(request.mesh_id)
            await room.call("StopMesh", request, caller_of(context))
        return pb.StopMeshReply()

    # ---- what there is ----

    @translated
    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        caller = caller_of(context)
        reply: pb.StatusReply = await super().Status(request, context)
        seen = {one.reservation_id: one for one in reply.reservations if one.right > Right.NONE}
        rooms = await asyncio.gather(*(self.rooms.of_reservation(each) for each in seen), return_exceptions=True)
        found = {room.account: room for room in rooms if isinstance(room, Room)}
        asked = (room.call("Status", request, caller, STATUS_S) for room in found.values())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for room, told in zip(found.values(), answers, strict=True):
            for reservation in told.reservations if isinstance(told, pb.StatusReply) else ():
                own = seen.get(reservation.reservation_id)
                if own is not None and self.rooms.is_in(room, own.reservation_id):
                    own.meshes.extend(map(self._with_troubles, reservation.meshes))
                    own.files.CopyFrom(reservation.files)
        return reply

    def _with_troubles(self, mesh: pb.MeshStatus) -> pb.MeshStatus:
        """Say which ranks' GPUs can not be used: a room reads none."""
        for rank in mesh.ranks:
            rank.trouble = "; ".join(filter(None, map(self._node.state.gpu_troubles.get, rank.gpu_indices)))
        return mesh

    @translated
    async def DescribeEnvironment(
        self, request: files_pb2.DescribeEnvironmentRequest, context: Any
    ) -> files_pb2.DescribeEnvironmentReply:
        if request.python or request.directories:  # nothing that somebody names runs as the gateway
            room, caller = await self._own_room(context)
            reply: files_pb2.DescribeEnvironmentReply = await room.call("DescribeEnvironment", request, caller)
        else:
            reply = await super().DescribeEnvironment(request, context)
        return reply

    # ---- sessions ----

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        task = asyncio.current_task()
        try:
            await super().Session(self._heard(request_iterator), context)
        except asyncio.CancelledError:
            carried = self._carried.get(task)
            if task is None or carried is None or not carried.is_lost:
                raise
            task.uncancel()  # gRPC would not tell the client
            await refuse(context, NodeUnreachable("a room has ended: open the session again"))
        finally:
            if carried := self._carried.pop(task, None):
                carried.close()
                self._share_out(carried.person)

    async def _heard(self, requests: AsyncIterator[pb.SessionRequest]) -> AsyncIterator[pb.SessionRequest]:
        """What a client says is read no faster than its rooms read it."""
        task = asyncio.current_task()
        async for request in requests:
            yield request
            if carried := self._carried.get(task):
                await carried.room()

    def _handle(self, session: ClientSession, caller: Caller, request: pb.SessionRequest) -> None:
        kind, task = request.WhichOneof("message"), asyncio.current_task()
        if kind == "open":
            opening = pb.Open()
            opening.CopyFrom(request.open)
            request.open.mailbox = ""  # its mail is in rooms
            super()._handle(session, caller, request)
            assert task is not None
            if carried := self._carried.get(task):
                carried.open_again(opening)
            elif opening.protocol == PROTOCOL:
                self._carried[task] = Carried(self.rooms, session, caller, opening, task.cancel)
                self._share_out(caller.name)
            return
        if (carried := self._carried.get(task)) is None:
            return
        if kind in ("attach", "detach"):
            super()._handle(session, caller, request)
        elif kind:
            try:
                self._access.admit_message(caller, kind, getattr(request, kind))
                if kind == "branches" and request.branches.nodes:
                    carried.refusal = self._why_no_tree(caller, request.branches)
                if carried.refusal is not None and kind in OF_TREE:
                    raise carried.refusal
            except MonarchNbError as error:
                message: Any = getattr(request, kind)
                run_id = message.run.run_id if kind == "submit" else getattr(message, "run_id", "")
                session.send(refused=pb.Refused(run_id=run_id, error_json=error_to_json(error)))
                return
        carried.say(request)
        if kind == "submit":  # meanwhile its room begins it
            self._note(caller, request.submit)

    def _share_out(self, person: str) -> None:
        """Bound what waits in memory for one person, however many clients they have."""
        theirs = [carried for carried in self._carried.values() if carried.person == person]
        for carried in theirs:
            carried.share(len(theirs))

    def _why_no_tree(self, caller: Caller, branches: pb.Branches) -> MonarchNbError | None:
        """Return why a session has no nodes below this one: rooms talk to other nodes in their owners' names only."""
        lease = self._node.state.lease(self._access.reservation_of(branches.mesh_id)).request
        if lease.owner == caller.name:
            return None
        return AccessDenied(
            f"{lease.name} is {lease.owner}'s, on nodes where people run as their own accounts. There only the owner "
            f"can run cells on a mesh of so many nodes: ask {lease.owner} to run it, or to reserve fewer nodes",
            lease.owner,
            lease.name,
        )

    def _note(self, caller: Caller, submit: pb.Submit) -> None:
        run = submit.run
        self._node.record.note(
            RUN,
            reservation=self._access.reservation_of(submit.mesh_id),
            mesh=submit.mesh_id,
            run=run.run_id,
            ranks=len(submit.ranks),
            by=submit.owner or caller.name,
        )

    # ---- what rooms answer ----

    async def room_for(self, request: Any, caller: Caller) -> Room:
        """Return the room that a request is for."""
        if isinstance(request, pb.Envelopes):
            return await self.rooms.of_holder(caller.name)
        if reservation_id := getattr(request, "reservation_id", ""):
            self.rooms.name_nodes(reservation_id, getattr(request, "peers", ()))
            return await self.rooms.of_reservation(reservation_id)
        if mesh_id := getattr(request, "mesh_id", ""):
            return await self.rooms.of_mesh(mesh_id)
        return await self.rooms.of_person(caller.name)

    async def _own_room(self, context: Any) -> tuple[Room, Caller]:
        caller = caller_of(context)
        return await self.rooms.of_person(caller.name), caller


def _call(name: str) -> Any:
    @translated
    async def call(self: GatewayService, request: Any, context: Any) -> Any:
        caller = caller_of(context)
        room = await self.room_for(request, caller)
        call = asyncio.shield(asyncio.ensure_future(room.call(name, request, caller)))
        if name not in MAKING:
            return await call
        known = request.mesh_id in self.rooms.meshes
        self.rooms.meshes.setdefault(request.mesh_id, request.reservation_id)
        try:
            return await call
        except MonarchNbError:
            if not known:
                self.rooms.meshes.pop(request.mesh_id, None)
            raise

    return call


def _answering_stream(name: str) -> Any:
    async def stream(self: GatewayService, request: Any, context: Any) -> AsyncIterator[Any]:
        caller = caller_of(context)
        try:
            room = await self.room_for(request, caller)
            with room.failures():
                answers = getattr(room.stub, name)(request, metadata=told_to_room(caller))
                try:
                    async for answer in answers:
                        yield answer
                finally:
                    answers.cancel()
        except MonarchNbError as error:
            await refuse(context, error)

    return stream


def _stream(name: str) -> Any:
    @translated
    async def stream(self: GatewayService, request_iterator: Any, context: Any) -> Any:
        caller = caller_of(context)
        requests = aiter(request_iterator)
        first = await anext(requests)
        room = await self.room_for(first, caller)

        async def all_of_it() -> AsyncIterator[Any]:
            yield first
            async for request in requests:
                yield request

        with room.failures():
            return await getattr(room.stub, name)(all_of_it(), metadata=told_to_room(caller))

    return stream


for _names, _make in ((CALLS, _call), (ANSWERING_STREAMS, _answering_stream), (STREAMS, _stream)):
    for _name in _names:
        setattr(GatewayService, _name, _make(_name))
