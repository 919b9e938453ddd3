"""The gRPC service: thin. Each method unpacks a request, calls the node, and packs the reply."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import grpc

from monarch_nb import config
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.control import control_ranks, drop, interrupt, look
from monarch_nb.allocator.api.describe import Description, describe_environment
from monarch_nb.allocator.api.read_lines import LogLines
from monarch_nb.allocator.api.read_logs import LogReader
from monarch_nb.allocator.files import node_files
from monarch_nb.allocator.mail.mail import on_session
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.reservations.leases import audit
from monarch_nb.allocator.runs.below import Below
from monarch_nb.allocator.runs.sessions import Session as ClientSession
from monarch_nb.allocator.state.lease import Right
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError, VersionMismatch
from monarch_nb.ground.room import explained
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.proto import files_pb2
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.callers import Caller, caller_of
from monarch_nb.rpc.status import error_to_json


class Claims:
    """Who has which name. A lock is there as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, reservation_id: str, name: str) -> asyncio.Lock:
        """Return the lock that whoever has this name of a reservation holds; who waits gets it in turn."""
        return self._locks.setdefault((reservation_id, name), asyncio.Lock())


_log = logging.getLogger(__name__)

ABORT_S = patience(2.0)
"""How long a rank may take to let its process groups go."""
LAST_WRITE_S = patience(5.0)
"""How long a session's last message may take: gRPC never ends a call whose first message is cancelled half-way."""


class AllocatorService(service.AllocatorServicer):
    """One node's service. A call that a client abandons still runs to its end: half a spawn would leak ranks.

    It stands behind a Guard, which asks `access` for each request; what a session brings, and what others see, it asks
    itself.
    """

    def __init__(self, node: Node, access: Access) -> None:
        self._node, self._description, self._access = node, Description(node), access
        self._log_lines = LogLines(node.paths, node.state, node.watch)
        self._log_reader = LogReader(node.paths, node.state, node.watch, node.sessions, node.kept_logs)
        self._looks: set[asyncio.Future[None]] = set()
        self._claims, self._changes = Claims(), Claims()

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
        async with contextlib.aclosing(self._node.leases.line.wait(request)) as places:
            async for place in places:
                yield place

    async def Confirm(self, request: pb.ConfirmRequest, context: Any) -> pb.ConfirmReply:
        self._node.leases.confirm(request)
        return pb.ConfirmReply()

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        by, asked_at = request.by, request.asked_at or time.time()
        owed = pb.UndertakeRequest(reservation_id=request.reservation_id, owner=request.owner, nodes=request.absent)
        owed.by, owed.asked_at = by, asked_at
        self._node.owed.take(owed)
        release = self._node.leases.release(
            request.reservation_id, request.why, request.lease_id, by=by, asked_at=asked_at
        )
        ended = await _whole(release)
        reply = pb.ReleaseReply(ranks_ended=ended, kept=self._kept(request.reservation_id))
        if logs := self._node.kept_logs.of_reservation.get(request.reservation_id):
            reply.name, reply.logs = logs[0], str(logs[1])
        return reply

    def _kept(self, reservation_id: str) -> pb.KeptFiles | None:
        kept = self._node.files.kept.get(reservation_id)
        if kept is None:
            return None
        return pb.KeptFiles(directory=str(kept.directory), files=kept.files, size_bytes=kept.size_bytes)

    async def ChangeMembers(self, request: pb.ChangeMembersRequest, context: Any) -> pb.ChangeMembersReply:
        if any(peer.address == self._node.identity.address for peer in request.nodes):
            await _whole(self._change_members(request))
            return pb.ChangeMembersReply()
        with contextlib.suppress(ReservationNotFound):  # it has gone already
            await _whole(self._change_members(request))
        return pb.ChangeMembersReply(kept=self._kept(request.reservation_id))

    async def _change_members(self, request: pb.ChangeMembersRequest) -> None:
        is_news = await self._node.members.change(request)
        if request.makes:
            self._node.undertakings.mesh_is_whole(request.makes)
        async with self._changes.of(request.reservation_id, ""):  # who brings no news waits for who did
            if is_news and request.reason:
                await self._abort_groups(request.reservation_id, request.reason)

    async def _abort_groups(self, reservation_id: str, reason: str) -> None:
        meshes = self._node.state.meshes.items()
        of_reservation = [(key, mesh) for key, mesh in meshes if mesh.spec.reservation_id == reservation_id]
        for mesh_id, mesh in of_reservation:
            abort = pb.ControlRanksRequest(mesh_id=mesh_id, ranks=mesh.ranks, timeout_s=ABORT_S, abort_groups=reason)
            await control_ranks(self._node, abort)

    async def Undertake(self, request: pb.UndertakeRequest, context: Any) -> pb.UndertakeReply:
        request.owner = request.owner or self._node.state.owner_of(request.reservation_id)
        self._node.undertakings.take(request)
        return pb.UndertakeReply()

    async def Claim(self, request: pb.ClaimRequest, context: Any) -> AsyncIterator[pb.ClaimReply]:
        async with self._claims.of(request.reservation_id, request.name):
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
        return pb.SpawnReply(ranks=await _whole(self._spawn(request)))

    async def _spawn(self, request: pb.SpawnRequest) -> list[pb.Rank]:
        mesh = await self._node.forking.spawn(request)
        return self._description.ranks(mesh, mesh.ranks)

    async def Restart(self, request: pb.RestartRequest, context: Any) -> pb.RestartReply:
        return pb.RestartReply(ranks=await _whole(self._restart(request)))

    async def _restart(self, request: pb.RestartRequest) -> list[pb.Rank]:
        mesh = await self._node.restarts.restart(request.mesh_id, request.ranks)
        return self._description.ranks(mesh, request.ranks)

    async def StopMesh(self, request: pb.StopMeshRequest, context: Any) -> pb.StopMeshReply:
        await _whole(self._node.leases.stop_mesh(request.mesh_id, caller_of(context).name))
        return pb.StopMeshReply()

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        status = await self._description.status(
            memory=request.memory, readings=request.readings, past_runs=request.past_runs
        )
        status.node.revocations = self._access.revocations
        for reservation in status.reservations:
            reservation.waiting.extend(self._node.leases.waiting_for(reservation.reservation_id))
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
        """Read requests and write batches of events until either side ends."""
        caller = caller_of(context)
        session = ClientSession(functools.partial(self._access.may_read, caller))
        self._node.sessions.add(session)
        writer = asyncio.create_task(self._write_events(session, context))
        try:
            async for request in request_iterator:
                if request.HasField("branches") and self._is_early(request.branches):
                    break  # whoever is above tries again
                self._handle(session, caller, request)
        finally:
            self._node.records.flush()  # what only this client could have submitted again
            self._node.sessions.discard(session)
            self._node.mail.close_mailbox(session)
            self._node.runs.session_left(session)
            self._node.undertakings.session_left(session)
            for reservation_id in list(session.attached):
                self._node.leases.expiry.detach(session, reservation_id)
            session.close()
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # else nothing can be written any more
                await asyncio.wait({writer}, timeout=LAST_WRITE_S)
            writer.cancel()

    def _is_early(self, branches: pb.Branches) -> bool:
        """Whether this node has yet to learn of nodes of a mesh."""
        mesh = self._node.state.meshes.get(branches.mesh_id)
        lease = self._node.state.leases.get(mesh.spec.reservation_id) if mesh else None
        known = {peer.address for peer in lease.nodes} if lease else set()
        return lease is not None and any(node.peer.address not in known for node in branches.nodes)

    async def _write_events(self, session: ClientSession, context: Any) -> None:
        gone = (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError)  # as gRPC says that nobody reads
        with contextlib.suppress(asyncio.CancelledError, *gone):
            while events := await session.batches():
                await context.write(events)

    def _handle(self, session: ClientSession, caller: Caller, request: pb.SessionRequest) -> None:
        kind = request.WhichOneof("message")
        message: Any = getattr(request, kind) if kind else None
        if request.collected and session.below is not None:
            submitted = (run_id for run_id in request.collected if self._access.is_submitter(caller, run_id))
            self._node.collected(submitted)
            session.below.collected(request.collected, at_once=kind is None)
        run_id = message.run.run_id if kind == "submit" else getattr(message, "run_id", "")
        try:
            if kind:
                self._access.admit_message(caller, kind, message)
            match kind:
                case "open":
                    check_protocol(message.protocol, message.client_id)
                    session.client_id = message.client_id
                    if caller.local:
                        session.process = processes.identify_in(message.pid_namespace, message.pid)
                    token = self._node.identity.token
                    opened = pb.Opened(protocol=config.PROTOCOL, version=config.VERSION, token=token)
                    if caller.local and not self._node.identity.isolated:  # who comes there is not asked for rights
                        opened.mail_directory = str(self._node.mail.blobs.directory)
                        opened.mail_socket = str(self._node.paths.mail_socket)
                    session.send(opened=opened)
                    if message.mailbox:
                        session.mailbox = message.mailbox
                        self._node.mail.open_mailbox(message.mailbox, session, on_session(session))
                case "branches":
                    owner = self._node.state.check_nodes(message)
                    name = owner if caller.local else caller.name
                    world_size = self._node.state.mesh(message.mesh_id).spec.world_size
                    opened_by = functools.partial(self._node.files.relay.open_session, name)
                    session.stand_above(message, world_size, opened_by)
                case "mail":
                    self._accept_mail(session, caller, message.envelopes)
                case "attach":
                    session.notebook = message.notebook
                    self._node.leases.attach(session, message.reservation_id)
                case "detach":
                    self._node.leases.expiry.detach(session, message.reservation_id)
                case str():
                    self._handle_run(session, caller, kind, message, run_id)
        except MonarchNbError as error:
            session.send(refused=pb.Refused(run_id=run_id, error_json=error_to_json(error)))

    def _handle_run(self, session: ClientSession, caller: Caller, kind: str, message: Any, run_id: str) -> None:
        below = session.below
        if below is None:
            if kind in ("submit", "follow"):
                self._node.state.mesh(message.mesh_id)  # it is not here any more, perhaps, and so was refused
                raise UsageError("a session has no runs before it says of which mesh, with Branches")
            return
        match kind:
            case "submit":
                self._submit(session, below, caller, message)
            case "follow":
                if below.follow(message):
                    session.run_ids.add(run_id)
                    self._node.runs.follow(session, message)
            case "cancel":
                if below.cancel(message):
                    interrupt(self._node, run_id, caller.name, message.whence)
            case "end_calls":
                self._node.runs.end_calls(run_id)
                below.end_calls(run_id)
            case "look":
                if here := below.look(message):
                    self._tell_where(session, message, here)
            case "shown":
                own = below.shown(message)
                if self._access.is_submitter(caller, run_id):
                    for _, run in self._access.runs(run_id):  # none: it was forgotten while this was under way
                        run.shown |= dict(own.cursors)
            case "unfollow":
                session.unfollow(run_id)
                below.unfollow(run_id)

    def _tell_where(self, session: ClientSession, request: pb.Look, ranks: list[int]) -> None:
        async def tell() -> None:
            with contextlib.suppress(MonarchNbError):  # it is not here any more: nobody waits long for the answer
                session.send(urgent=False, seen=await look(self._node, request, ranks))

        task = asyncio.ensure_future(tell())
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    def _submit(self, session: ClientSession, below: Below, caller: Caller, submit: pb.Submit) -> None:
        run_id = submit.run.run_id
        mesh = self._node.state.mesh(submit.mesh_id)
        if run_id not in mesh.runs:
            self._node.files.workspaces.check_whole(mesh.spec.reservation_id)
        if submit.whole:
            session.whole.add(run_id)
        own = below.submit(submit)
        if (own.ranks or own.give_number) and run_id not in session.run_ids:
            session.run_ids.add(run_id)
            is_new = run_id not in mesh.runs
            queued = self._node.runs.submit(session, own)
            if is_new and not caller.local:  # who comes on the Unix socket is the allocator's own user
                self._note_run(caller, own)
            if not submit.run.number:
                below.numbered(submit, queued)

    def _note_run(self, caller: Caller, submit: pb.Submit) -> None:
        """Write down who has a run, and not what it does."""
        run = self._node.state.mesh(submit.mesh_id).runs[submit.run.run_id]
        audit(
            "run",
            reservation=self._access.reservation_of(submit.mesh_id),
            mesh=submit.mesh_id,
            run=run.run_id,
            number=run.number,
            kind="script" if run.is_script else "calls" if run.is_calls else "cell",
            ranks=len(run.ranks),
            by=submit.owner or caller.name,
        )

    def _accept_mail(self, session: ClientSession, caller: Caller, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            if not self._access.is_own_mail(caller, session.mailbox, envelope):
                _log.warning("%s sends mail that is not its own: it is not delivered", caller.name)
                continue
            try:
                self._access.admit_mail(caller, envelope)
            except MonarchNbError as error:
                self._node.mail.refuse(envelope, error)
            else:
                self._node.mail.accept([envelope])

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
        return self._node.values.blob_path(mesh_id, blob) if mesh_id else self._node.mail.blobs.path(blob)

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


def check_protocol(protocol: int, client: str) -> None:
    """Raise VersionMismatch unless the client speaks our protocol."""
    if protocol != config.PROTOCOL:
        raise VersionMismatch(
            f"the notebook's monarch_nb speaks protocol {protocol}, this node's (version {config.VERSION}) protocol "
            f"{config.PROTOCOL}: install the same version on both and restart the older one",
            client=f"{client} (protocol {protocol})",
            node=f"{config.VERSION} (protocol {config.PROTOCOL})",
        )
