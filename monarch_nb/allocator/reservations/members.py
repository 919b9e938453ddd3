"""The nodes of a reservation, as this one knows them, and what they are to end or to know.

A client that adds nodes leases and starts what is needed there first, provisionally. Then it tells one node of the
reservation. That one writes it down, and from then on it is so: it tells all that are or were nodes of the reservation,
again and again while one is away, also after a restart. What the client does is of no matter any more. Whoever learns
that it has no place any more gives its lease back. Revisions tell which of two lists is the newer one. Two clients that
could not reach the same nodes may have made one each: when nodes hear of both, all keep the same one, and whoever knew
the other tells the nodes that came with it.

Each node does its own part whole. But a client that is killed after it has told some nodes and not the others would
leave half a reservation, or half a mesh. So it says to one node first what it is about to do and where, and at the end
that it is done. When that client is gone before, the node has all of them end it: at once where it sees that the
process has ended, else when the client's session has been away for 20 s.

A client that uses a mesh which is to end with its users says so in the same way. When it and all others who have said
so are gone for as long as they wanted, the node has all nodes end the mesh.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.config import cadence, patience
from monarch_nb.errors import CertificateRefused, MonarchNbError, NodeUnreachable, TrustError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.runs.sessions import Session
    from monarch_nb.proto.state_pb2 import ProcessIdentity

_log = logging.getLogger(__name__)

TELL_AGAIN_S = cadence(2.0)
"""Between attempts to reach a node: nothing tells when it is there again."""
MOST_NOTICES = 5000
"""Of nodes that are to be told something: a pool whose nodes never come back does not fill the database."""


class Outbox:
    """What this node has to tell others, until they have answered: to end a mesh or a reservation, or its nodes.

    They were away when their reservation was given back, or their place in it to another node; or the client died that
    would have said so.
    """

    def __init__(self, node: Node) -> None:
        self._records, self._relay = node.records, node.files.relay
        self._telling: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one had to tell."""
        for key, notice in self._records.database.read("notice", pb.UndertakeRequest):
            self._start(key, notice)

    def take(self, request: pb.UndertakeRequest) -> None:
        """Have nodes end something, when they answer, or let them know the nodes of a reservation."""
        if len(self._telling) + len(request.nodes) > MOST_NOTICES:
            return
        change = f"/{request.members.revision}" if request.HasField("members") else ""
        for peer in request.nodes:
            notice = pb.UndertakeRequest()
            notice.CopyFrom(request)
            del notice.nodes[:]
            notice.nodes.append(peer)
            key = f"{request.reservation_id}/{request.mesh_id}/{peer.address}{change}"
            self._records.database.put("notice", key, notice)
            self._start(key, notice)
        self._records.flush()

    def close(self) -> None:
        """Tell nobody any more; the next allocator does."""
        for task in self._telling.values():
            task.cancel()

    def _start(self, key: str, notice: pb.UndertakeRequest) -> None:
        if key not in self._telling:
            task = self._telling[key] = asyncio.create_task(self._tell(key, notice))
            task.add_done_callback(lambda _: self._telling.pop(key))

    async def _tell(self, key: str, notice: pb.UndertakeRequest) -> None:
        [peer] = notice.nodes
        method, message = _call(notice)
        what = f"{method} of reservation {notice.reservation_id} {notice.mesh_id}".rstrip()
        refusal = ""
        while True:
            try:
                await self._relay.call(peer, method, message, patience(30.0), owner=notice.owner)
                _log.info("%s has been told: %s", peer.node_id, what)
                break
            except NodeUnreachable:
                await asyncio.sleep(TELL_AGAIN_S)
            except (CertificateRefused, TrustError) as error:  # until this node has another certificate
                if str(error) != refusal:
                    refusal = str(error)
                    _log.warning("%s has yet to be told: %s: %s", peer.node_id, what, error)
                await asyncio.sleep(TELL_AGAIN_S)
            except MonarchNbError as error:
                _log.warning("%s does not do it: %s: %s", peer.node_id, what, error)
                break
        self._records.forget("notice", key)


def _call(request: pb.UndertakeRequest) -> tuple[str, pb.ReleaseRequest | pb.StopMeshRequest | pb.ChangeMembersRequest]:
    """Return what to call a node for."""
    if request.HasField("members"):
        return "ChangeMembers", request.members
    if request.mesh_id:
        return "StopMesh", pb.StopMeshRequest(mesh_id=request.mesh_id)
    release = pb.ReleaseRequest(reservation_id=request.reservation_id, by=request.by, asked_at=request.asked_at)
    return "Release", release


LEFT = "its node is no longer part of the reservation"


class Members:
    """Changes which nodes a reservation has."""

    def __init__(self, node: Node) -> None:
        self._node, self._address, self._state = node, node.identity.address, node.state

    async def change(self, request: pb.ChangeMembersRequest) -> bool:
        """Know the nodes of a reservation; return whether that is news, and this one is among them still.

        Raises:
            ReservationConflict: somebody else was faster.
            ReservationNotFound: this node holds nothing of it.
        """
        reservation_id = request.reservation_id
        known = {peer.address for peer in (*request.before, *request.nodes)}
        # Whoever made the next list did not know of these nodes.
        astray = [peer for peer in self._state.lease(reservation_id).nodes if peer.address not in known]
        concerned = self._state.change_members(request, self._address, seconds_since_boot())
        lease = self._state.lease(reservation_id)
        if concerned is None:
            if not lease.has_node(self._address):
                await self._node.leases.release(reservation_id)
            return False
        self._pass_on(request, lease.request.owner, concerned if request.pass_on else astray)
        if not lease.has_node(self._address):
            _log.warning("this node is no longer part of %s: its part is released", lease.request.name)
            for mesh_id in list(self._state.meshes_of(reservation_id)):
                self._node.runs.end_all(mesh_id, request.ends or LEFT)
            await self._node.leases.release(reservation_id)
            return False
        self._node.leases.has_changed(reservation_id)
        for peer in concerned:
            if not lease.has_node(peer.address):
                self._node.mail.node_is_lost(peer.address, LEFT)
        changed = pb.MembersChanged(reservation_id=reservation_id, revision=lease.revision)
        for session in self._node.sessions:
            if session.may_read(reservation_id):
                session.send(members_changed=changed)
        return True

    def _pass_on(self, request: pb.ChangeMembersRequest, owner: str, to: Iterable[files_pb2.Peer]) -> None:
        nodes = [peer for peer in to if peer.address != self._address]
        notice = pb.UndertakeRequest(reservation_id=request.reservation_id, owner=owner, nodes=nodes, members=request)
        notice.members.pass_on = False
        self._node.outbox.take(notice)


MOST_IN_PROGRESS = 1000
"""Of undertakings at a time: more is no client of ours."""


class Undertakings:
    """Looks after clients that make or end something on several nodes."""

    def __init__(self, node: Node) -> None:
        self._node, self._records, self._sessions = node, node.records, node.sessions
        self._begun: dict[str, pb.UndertakeRequest] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one was told: its clients may come back."""
        self._begun = dict(self._records.database.read("undertaking", pb.UndertakeRequest))
        for request in self._begun.values():
            self._wait_for(request.client_id)

    def take(self, request: pb.UndertakeRequest) -> None:
        """A client is about to make or end something on several nodes, or has done so.

        Raises:
            UsageError: nobody knows whose it is, or too much is under way.
        """
        if not request.owner:
            raise UsageError("say whose reservation it is: this node does not know it")
        key = f"{request.client_id}/{request.reservation_id}/{request.mesh_id}"
        if request.done:
            if self._begun.pop(key, None):
                self._records.forget("undertaking", key)
            return
        if len(self._begun) >= MOST_IN_PROGRESS:
            raise UsageError(
                f"this node is making or ending {MOST_IN_PROGRESS} reservations and meshes already: try again later"
            )
        self._begun[key] = request
        self._records.save("undertaking", key, request)
        if not self._is_here(request.client_id):
            self._wait_for(request.client_id)

    def mesh_is_whole(self, mesh_id: str) -> None:
        """What was undertaken to make a mesh is done."""
        making = (key for key, one in self._begun.items() if one.mesh_id == mesh_id and not one.linger_s)
        for key in list(making):
            del self._begun[key]
            self._records.forget("undertaking", key)

    def session_left(self, session: Session) -> None:
        """A client is gone, or its connection broke."""
        client_id = session.client_id
        if self._node.leases.expiry.leases_of(client_id) or self._of(client_id):
            self._wait_for(client_id, session.process)

    def close(self) -> None:
        """Look after nobody any more; the next allocator does."""
        for task in self._waiting.values():
            task.cancel()

    def _is_here(self, client_id: str) -> bool:
        return any(session.client_id == client_id for session in self._sessions)

    def _wait_for(self, client_id: str, process: ProcessIdentity | None = None) -> None:
        if earlier := self._waiting.get(client_id):
            earlier.cancel()
        task = self._waiting[client_id] = asyncio.create_task(self._wait(client_id, process))
        task.add_done_callback(functools.partial(self._waited, client_id))

    def _waited(self, client_id: str, task: asyncio.Task[None]) -> None:
        if self._waiting.get(client_id) is task:
            del self._waiting[client_id]

    async def _wait(self, client_id: str, process: ProcessIdentity | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.PROVISIONAL_LEASE_S):
                await _end_of(process)
        if not self._is_here(client_id):
            self._end_all(client_id)
        waited_s = 0.0
        while lingers := sorted(one.linger_s for one in self._of(client_id) if one.linger_s):
            await asyncio.sleep(lingers[0] - waited_s)
            waited_s = lingers[0]
            if self._is_here(client_id):
                return
            self._leave_used(client_id, waited_s)

    def _of(self, client_id: str) -> list[pb.UndertakeRequest]:
        return [request for request in self._begun.values() if request.client_id == client_id]

    def _leave_used(self, client_id: str, gone_s: float) -> None:
        """A client is gone for so long: meshes that it has used end, unless another client uses them."""
        for key, request in list(self._begun.items()):
            if request.client_id == client_id and 0 < request.linger_s <= gone_s:
                del self._begun[key]
                self._records.forget("undertaking", key)
                if not any(one.mesh_id == request.mesh_id and one.linger_s for one in self._begun.values()):
                    _log.info("nobody uses mesh %s: this node ends it on all its nodes", request.mesh_id)
                    self._node.outbox.take(request)

    def _end_all(self, client_id: str) -> None:
        self._node.leases.expiry.client_is_gone(client_id)
        for key, request in list(self._begun.items()):
            if request.client_id == client_id and not request.linger_s:
                what = f"mesh {request.mesh_id}" if request.mesh_id else f"reservation {request.reservation_id}"
                _log.warning("a client died while it made or ended %s: this node ends it on all its nodes", what)
                self._node.outbox.take(request)
                del self._begun[key]
                self._records.forget("undertaking", key)


async def _end_of(process: ProcessIdentity | None) -> None:
    """Wait for the end of a process; for ever, when it is not known which one it is."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid) if process else -1
    except ProcessLookupError:
        return
    except OSError:  # no descriptors
        pidfd = -1
    try:
        if process is not None and pidfd >= 0:
            if not processes.is_alive(process):
                return
            loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        if pidfd >= 0:
            loop.remove_reader(pidfd)
            os.close(pidfd)
