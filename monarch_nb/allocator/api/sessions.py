"""What one client says on its session, and what it is told: a stream each way, until either side ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any
from weakref import WeakValueDictionary

import grpc

from monarch_nb import config
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.control import interrupt, look
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.reservations.leases import audit
from monarch_nb.allocator.runs.below import Below
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, UsageError, VersionMismatch
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.callers import Caller
from monarch_nb.rpc.status import error_to_json


class Claims:
    """Who has which name. A lock is there as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, reservation_id: str, name: str) -> asyncio.Lock:
        """Return the lock that whoever has this name of a reservation holds; who waits gets it in turn."""
        return self._locks.setdefault((reservation_id, name), asyncio.Lock())


_log = logging.getLogger(__name__)

LAST_WRITE_S = patience(5.0)
"""How long a session's last message may take: gRPC never ends a call whose first message is cancelled half-way."""


class SessionCall:
    """Serves one client's session: each message is let in by itself."""

    def __init__(self, node: Node, access: Access, caller: Caller) -> None:
        self._node, self._access, self._caller = node, access, caller
        self._session = Session(functools.partial(access.may_read, caller))
        self._looks = Tasks()

    async def serve(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        """Read requests and write batches of events until either side ends."""
        session = self._session
        self._node.sessions.add(session)
        writer = asyncio.create_task(self._write_events(context))
        try:
            async for request in requests:
                if request.HasField("branches") and self._is_early(request.branches):
                    break  # whoever is above tries again
                self._handle(request)
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

    async def _write_events(self, context: Any) -> None:
        gone = (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError)  # as gRPC says that nobody reads
        with contextlib.suppress(asyncio.CancelledError, *gone):
            while events := await self._session.batches():
                await context.write(events)

    def _handle(self, request: pb.SessionRequest) -> None:
        session, caller = self._session, self._caller
        kind = request.WhichOneof("message")
        message: Any = getattr(request, kind) if kind else None
        if request.collected and session.below is not None:
            submitted = (run_id for run_id in request.collected if self._access.is_submitter(caller, run_id))
            self._node.runs.collected(submitted)
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
                        self._node.mail.open_mailbox(message.mailbox, session)
                case "branches":
                    owner = self._node.state.check_nodes(message)
                    name = owner if caller.local else caller.name
                    world_size = self._node.state.mesh(message.mesh_id).spec.world_size
                    opened_by = functools.partial(self._node.files.relay.open_session, name)
                    session.stand_above(message, world_size, opened_by)
                case "mail":
                    self._accept_mail(message.envelopes)
                case "attach":
                    session.notebook = message.notebook
                    self._node.leases.attach(session, message.reservation_id)
                case "detach":
                    self._node.leases.expiry.detach(session, message.reservation_id)
                case str():
                    self._handle_run(kind, message, run_id)
        except MonarchNbError as error:
            session.send(refused=pb.Refused(run_id=run_id, error_json=error_to_json(error)))

    def _handle_run(self, kind: str, message: Any, run_id: str) -> None:
        session, below = self._session, self._session.below
        if below is None:
            if kind in ("submit", "follow"):
                self._node.state.mesh(message.mesh_id)  # it is not here any more, perhaps, and so was refused
                raise UsageError("a session has no runs before it says of which mesh, with Branches")
            return
        match kind:
            case "submit":
                self._submit(below, message)
            case "follow":
                if below.follow(message):
                    session.run_ids.add(run_id)
                    self._node.runs.follow(session, message)
            case "cancel":
                if below.cancel(message):
                    interrupt(self._node, run_id, self._caller.name, message.whence, by_sigterm=message.by_sigterm)
            case "end_calls":
                self._node.runs.end_calls(run_id)
                below.end_calls(run_id)
            case "look":
                if here := below.look(message):
                    self._tell_where(message, here)
            case "shown":
                own = below.shown(message)
                if self._access.is_submitter(self._caller, run_id):
                    for _, run in self._access.runs(run_id):  # none: it was forgotten while this was under way
                        run.shown |= dict(own.cursors)
            case "unfollow":
                session.unfollow(run_id)
                below.unfollow(run_id)

    def _tell_where(self, request: pb.Look, ranks: list[int]) -> None:
        async def tell() -> None:
            with contextlib.suppress(MonarchNbError):  # it is not here any more: nobody waits long for the answer
                self._session.send(urgent=False, seen=await look(self._node, request, ranks))

        self._looks.start(tell())

    def _submit(self, below: Below, submit: pb.Submit) -> None:
        session, run_id = self._session, submit.run.run_id
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
            if is_new and not self._caller.local:  # who comes on the Unix socket is the allocator's own user
                self._note_run(own)
            if not submit.run.number:
                below.numbered(submit, queued)

    def _note_run(self, submit: pb.Submit) -> None:
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
            by=submit.owner or self._caller.name,
        )

    def _accept_mail(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            if not self._access.is_own_mail(self._caller, self._session.mailbox, envelope):
                _log.warning("%s sends mail that is not its own: it is not delivered", self._caller.name)
                continue
            try:
                self._access.admit_mail(self._caller, envelope)
            except MonarchNbError as error:
                self._node.mail.refuse(envelope, error)
            else:
                self._node.mail.accept([envelope])


def check_protocol(protocol: int, client: str) -> None:
    """Raise VersionMismatch unless the client speaks our protocol."""
    if protocol != config.PROTOCOL:
        raise VersionMismatch(
            f"the notebook's monarch_nb speaks protocol {protocol}, this node's (version {config.VERSION}) protocol "
            f"{config.PROTOCOL}: install the same version on both and restart the older one",
            client=f"{client} (protocol {protocol})",
            node=f"{config.VERSION} (protocol {config.PROTOCOL})",
        )
