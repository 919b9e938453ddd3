"""The gRPC service: thin. Each method unpacks a request, calls the node, and packs the reply."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from monarch_nb import config
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.control import control_ranks, drop
from monarch_nb.allocator.api.describe import Description, describe_environment
from monarch_nb.allocator.api.read_lines import LogLines
from monarch_nb.allocator.api.read_logs import LogReader
from monarch_nb.allocator.api.sessions import SessionCall, check_protocol
from monarch_nb.allocator.files import node_files
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.reservations.leases import audit
from monarch_nb.allocator.state.lease import Right
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.ground.room import explained
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.proto import files_pb2
from monarch_nb.rpc.callers import caller_of

ABORT_S = patience(2.0)
"""How long a rank may take to let its process groups go."""


class AllocatorService(service.AllocatorServicer):
    """One node's service. A call that a client abandons still runs to its end: half a spawn would leak ranks.

    It stands behind a Guard, which asks `access` for each request; what a session brings, and what others see, it asks
    itself.
    """

    def __init__(self, node: Node, access: Access) -> None:
        self._node, self._description, self._access = node, Description(node), access
        self._log_lines = LogLines(node)
        self._log_reader = LogReader(node)
        # A lock is there as long as somebody has it or waits for it; who waits gets it in turn.
        self._claims = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._changes = WeakValueDictionary[str, asyncio.Lock]()

    async def close(self) -> None:
        """End what goes on."""
        await self._log_lines.close()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        check_protocol(request.protocol, request.client_version)
        await self._node.readings.look_at_gpus(self._node.state)
        reply = self._description.node()
        reply.revocations = self._access.revocations
        return reply

    async def Revoke(self, request: pb.RevokeRequest, context: Any) -> pb.RevokeReply:
        before, number = self._access.revocations, self._access.revoke(request.revocations)
        if number != before:
            audit("certificates revoked", list=number, by=caller_of(context).name)
        return pb.RevokeReply(number=number)

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        return pb.ProbeReply(peers=await self._node.reach.probe(request.peers, request.size_bytes))

    async def Listen(self, request: pb.ListenRequest, context: Any) -> pb.ListenReply:
        return await self._node.reach.listen()

    async def Reserve(self, request: pb.ReserveRequest, context: Any) -> pb.ReserveReply:
        await self._node.readings.look_at_gpus(self._node.state)
        return pb.ReserveReply(gpu_indices=await _whole(self._node.leases.take(request, context.peer())))

    async def Wait(self, request: pb.WaitRequest, context: Any) -> AsyncIterator[pb.WaitReply]:
        async with contextlib.aclosing(self._node.leases.queue.wait(request)) as places:
            async for place in places:
                yield place

    async def Confirm(self, request: pb.ConfirmRequest, context: Any) -> pb.ConfirmReply:
        self._node.leases.confirm(request)
        return pb.ConfirmReply()

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        by, asked_at = request.by, request.asked_at or time.time()
        notice = pb.UndertakeRequest(reservation_id=request.reservation_id, owner=request.owner, nodes=request.absent)
        notice.by, notice.asked_at = by, asked_at
        self._node.outbox.take(notice)
        release = self._node.leases.release(
            request.reservation_id, request.why, request.lease_id, by=by, asked_at=asked_at
        )
        ended = await _whole(release)
        reply = pb.ReleaseReply(ranks_ended=ended, kept=self._node.files.kept.get(request.reservation_id))
        if logs := self._node.kept_logs.of_reservation.get(request.reservation_id):
            reply.name, reply.logs = logs[0], str(logs[1])
        return reply

    async def ChangeMembers(self, request: pb.ChangeMembersRequest, context: Any) -> pb.ChangeMembersReply:
        if any(peer.address == self._node.identity.address for peer in request.nodes):
            await _whole(self._change_members(request))
            return pb.ChangeMembersReply()
        with contextlib.suppress(ReservationNotFound):  # it has gone already
            await _whole(self._change_members(request))
        return pb.ChangeMembersReply(kept=self._node.files.kept.get(request.reservation_id))

    async def _change_members(self, request: pb.ChangeMembersRequest) -> None:
        is_news = await self._node.members.change(request)
        if request.makes:
            self._node.undertakings.mesh_is_whole(request.makes)
        turn = self._changes.setdefault(request.reservation_id, asyncio.Lock())
        async with turn:  # who brings no news waits for who did
            if is_news and request.reason:
                await self._abort_groups(request.reservation_id, request.reason)

    async def _abort_groups(self, reservation_id: str, reason: str) -> None:
        for mesh_id, mesh in list(self._node.state.meshes_of(reservation_id).items()):
            abort = pb.ControlRanksRequest(mesh_id=mesh_id, ranks=mesh.ranks, timeout_s=ABORT_S)
            abort.question.abort_groups.reason = reason
            await control_ranks(self._node, abort)

    async def Undertake(self, request: pb.UndertakeRequest, context: Any) -> pb.UndertakeReply:
        request.owner = request.owner or self._node.state.owner_of(request.reservation_id)
        self._node.undertakings.take(request)
        return pb.UndertakeReply()

    async def Claim(self, request: pb.ClaimRequest, context: Any) -> AsyncIterator[pb.ClaimReply]:
        async with self._claims.setdefault((request.reservation_id, request.name), asyncio.Lock()):
            yield pb.ClaimReply()
            await asyncio.Event().wait()  # until the caller ends the call, or is gone

    async def Extend(self, request: pb.ExtendRequest, context: Any) -> pb.ExtendReply:
        self._node.leases.extend(request.reservation_id, request.time_s)
        audit("extended", reservation=request.reservation_id, time_s=request.time_s)
        return pb.ExtendReply()

    async def Share(self, request: pb.ShareRequest, context: Any) -> pb.ShareReply:
        self._node.leases.share(request)
        right = self._node.state.leases[request.reservation_id].shares.get(request.to, Right.NONE)
        self._node.runs.withdraw(request.reservation_id, request.to, Right(right))
        audit(
            "shared" if right else "no longer shared",
            reservation=request.reservation_id,
            owner=caller_of(context).name,
            to=request.to,
            right=Right(right).name.lower(),
        )
        self._access.rights_changed()
        return pb.ShareReply()

    async def Idle(self, request: pb.IdleRequest, context: Any) -> pb.IdleReply:
        return pb.IdleReply(idle_for_s=self._node.leases.expiry.idle_for_s(request.reservation_id))

    async def HostStore(self, request: pb.HostStoreRequest, context: Any) -> pb.HostStoreReply:
        if request.only_port:
            host, port = self._node.stores.free_port(request)
        else:
            host, port = await _whole(self._node.stores.host(request))
        return pb.HostStoreReply(host=host, port=port)

    async def FindStore(self, request: pb.FindStoreRequest, context: Any) -> pb.StorePlace:
        place: pb.StorePlace = await _whole(self._node.stores.find(request))
        return place

    async def MoveStore(self, request: pb.StorePlace, context: Any) -> pb.MoveStoreReply:
        self._node.stores.moved(request)
        return pb.MoveStoreReply()

    async def Spawn(self, request: pb.SpawnRequest, context: Any) -> pb.SpawnReply:
        mesh = await _whole(self._node.forking.spawn(request))
        return pb.SpawnReply(ranks=self._description.ranks(mesh, mesh.ranks))

    async def Restart(self, request: pb.RestartRequest, context: Any) -> pb.RestartReply:
        mesh = await _whole(self._node.forking.restart(request.mesh_id, request.ranks))
        return pb.RestartReply(ranks=self._description.ranks(mesh, request.ranks))

    async def StopMesh(self, request: pb.StopMeshRequest, context: Any) -> pb.StopMeshReply:
        await _whole(self._node.leases.stop_mesh(request.mesh_id, caller_of(context).name))
        return pb.StopMeshReply()

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        status = await self._description.status(
            memory=request.memory, readings=request.readings, past_runs=request.past_runs
        )
        status.node.revocations = self._access.revocations
        for reservation in status.reservations:
            reservation.waiting.extend(self._node.leases.queue.waiting_for(reservation.reservation_id))
            using = (one for one in self._node.sessions if reservation.reservation_id in one.attached)
            reservation.attached.extend(sorted({one.notebook for one in using if one.notebook}))
        if request.past_logs:
            status.past_logs.extend(self._node.kept_logs.of(request.past_logs))
        return self._access.shown(caller_of(context), status)

    async def Usage(self, request: pb.UsageRequest, context: Any) -> pb.UsageReply:
        caller, groups = caller_of(context), set[str]()
        if request.standings:
            reply, groups = await self._node.fairness.usage_with_standings(caller.name)
        else:
            reply = self._node.fairness.usage()
        return self._access.shown_usage(caller, reply, groups)

    async def Control(self, request: pb.ControlRanksRequest, context: Any) -> pb.ControlRanksReply:
        return pb.ControlRanksReply(replies=await control_ranks(self._node, request))

    async def Drop(self, request: pb.DropRequest, context: Any) -> pb.DropReply:
        return drop(self._node, request, caller_of(context).name)

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await SessionCall(self._node, self._access, caller_of(context)).serve(request_iterator, context)

    async def Mail(self, request_iterator: Any, context: Any) -> pb.MailEnd:
        nodes: set[str] = set()
        try:
            async for envelopes in request_iterator:
                known = [envelope for envelope in envelopes.envelopes if self._access.is_of_member(envelope)]
                nodes.update(envelope.sender.node for envelope in known)
                self._node.mail.accept(known, from_node=True)
        finally:  # what the other node could not write any more does not come
            for node in nodes:
                self._node.mail.node_is_lost(node)
        return pb.MailEnd()

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.LogRecords]:
        async with contextlib.aclosing(self._log_reader.read(request)) as coming:
            async for records in coming:
                yield records

    async def WatchLog(self, request: pb.WatchLogRequest, context: Any) -> AsyncIterator[pb.LogChange]:
        async with contextlib.aclosing(self._log_lines.watch(request)) as changes:
            async for change in changes:
                yield change

    async def ReadLines(self, request: pb.ReadLinesRequest, context: Any) -> pb.ReadLinesReply:
        return await self._log_lines.read(request)

    async def SearchLog(self, request: pb.SearchLogRequest, context: Any) -> pb.SearchLogReply:
        return await self._log_lines.search(request)

    async def ReadMetrics(self, request: pb.ReadMetricsRequest, context: Any) -> pb.ReadMetricsReply:
        return await self._log_lines.metrics(request)

    async def PutBlob(self, request_iterator: Any, context: Any) -> pb.PutBlobReply:
        size_bytes, file, path = 0, None, None
        try:
            async for chunk in request_iterator:
                if file is None:
                    path = self._blob_path(chunk.mesh_id, chunk.blob)
                    file = await asyncio.to_thread(path.open, "wb")  # a slow disk holds up nobody else
                await asyncio.to_thread(file.write, chunk.data)
                size_bytes += len(chunk.data)
            if file is not None:
                await asyncio.to_thread(file.close)  # here, because it writes what is left
        except BaseException as error:  # also when the client goes away: half a blob is of no use
            if path is not None:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                why = explained(error, self._node.paths.directory)
                raise MonarchNbError(f"{self._node.identity.node_id} can not store a value: {why}") from error
            raise
        finally:
            if file is not None:
                file.close()
        return pb.PutBlobReply(size_bytes=size_bytes)

    async def ReadBlob(self, request: pb.ReadBlobRequest, context: Any) -> AsyncIterator[pb.BlobChunk]:
        try:
            path = self._blob_path(request.mesh_id, request.blob)
            with await asyncio.to_thread(path.open, "rb") as file:
                while data := await asyncio.to_thread(file.read, config.CHUNK_BYTES):
                    yield pb.BlobChunk(data=data)
            if not request.mesh_id:
                path.unlink(missing_ok=True)
        except FileNotFoundError as error:
            raise MonarchNbError("the node no longer keeps the value") from error

    def _blob_path(self, mesh_id: str, blob: str) -> Path:
        return self._node.runs.blob_path(mesh_id, blob) if mesh_id else self._node.mail.blobs.path(blob)

    # ---- files ----

    async def SyncTree(self, request: files_pb2.SyncTreeRequest, context: Any) -> files_pb2.SyncTreeReply:
        self._node.state.lease(request.reservation_id)
        gone = asyncio.Event()
        work = asyncio.ensure_future(self._node.files.sync(request, gone))
        try:
            return await asyncio.shield(work)
        finally:
            gone.set()

    async def PutFiles(self, request_iterator: Any, context: Any) -> files_pb2.PutFilesReply:
        return await self._node.files.put_files(request_iterator)

    async def ChangeFiles(self, request: files_pb2.ChangeFilesRequest, context: Any) -> files_pb2.ChangeFilesReply:
        return files_pb2.ChangeFilesReply(files=self._node.leases.change_files(request))

    async def Workspace(self, request: files_pb2.WorkspaceRequest, context: Any) -> files_pb2.WorkspaceReply:
        self._node.state.lease(request.reservation_id)
        status = self._node.files.workspaces.status
        return await asyncio.to_thread(status, request.reservation_id, look=request.look, coming=request.coming)

    async def ListFiles(self, request: files_pb2.ListFilesRequest, context: Any) -> files_pb2.ListFilesReply:
        directory = self._node.forking.rank_directory(request.reservation_id, request.rank)
        return await asyncio.to_thread(self._node.files.list, directory, request)

    async def ReadFile(self, request: files_pb2.ReadFileRequest, context: Any) -> AsyncIterator[files_pb2.FilePiece]:
        async for piece in self._node.files.read(request.path):
            yield piece

    async def SeeToken(self, request: files_pb2.SeeTokenRequest, context: Any) -> files_pb2.SeeTokenReply:
        why_not = await asyncio.to_thread(node_files.handle, request, shares_nothing=self._node.identity.isolated)
        return files_pb2.SeeTokenReply(seen=not why_not, why_not=why_not)

    async def DescribeEnvironment(
        self, request: files_pb2.DescribeEnvironmentRequest, context: Any
    ) -> files_pb2.DescribeEnvironmentReply:
        return await describe_environment(str(self._node.paths.directory), self._node.identity.python, request)

    async def Shutdown(self, request: pb.ShutdownRequest, context: Any) -> pb.ShutdownReply:
        if self._node.state.leases and not request.force:
            held = ", ".join(sorted(lease.request.name for lease in self._node.state.leases.values()))
            raise UsageError(f"reservations are held: {held}; release them first, or use --force")
        self._node.keeps_logs = request.keep_logs
        self._node.shutdown.set()
        return pb.ShutdownReply()


async def _whole(work: Any) -> Any:
    """Run to the end even if the client goes away."""
    return await asyncio.shield(asyncio.ensure_future(work))
