"""The nodes of a reservation, as this one knows them: others may come in the places of some, or there may be more of
them, or less.

A client that adds nodes leases and starts what is needed there first, provisionally. Then it tells one node of the
reservation. That one writes it down, and from then on it is so: it tells all that are or were nodes of the reservation,
again and again while one is away, also after a restart. What the client does is of no matter any more. Whoever learns
that it has no place any more gives its lease back. Revisions tell which of two lists is the newer one. Two clients that
could not reach the same nodes may have made one each: when nodes hear of both, all keep the same one, and whoever knew
the other tells the nodes that came with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from monarch_nb.allocator.leases.leases import Leases
from monarch_nb.allocator.leases.owed import Owed
from monarch_nb.allocator.mail.mail import Mail
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.processes import seconds_since_boot
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2

_log = logging.getLogger(__name__)

LEFT = "its node is no longer part of the reservation"


class Members:
    """Changes which nodes a reservation has.

    Args:
        address: of this node.
        owed: tells other nodes.
        sessions: the clients, as they come and go.
        end_runs: called with (mesh id, why) when what a mesh runs here is about to end.
    """

    def __init__(
        self,
        address: str,
        state: NodeState,
        leases: Leases,
        owed: Owed,
        mail: Mail,
        sessions: Iterable[Session],
        end_runs: Callable[[str, str], None],
    ) -> None:
        self._address, self._state, self._leases = address, state, leases
        self._owed, self._mail, self._sessions, self._end_runs = owed, mail, sessions, end_runs

    async def change(self, request: pb.ChangeMembersRequest) -> bool:
        """Know the nodes of a reservation; return whether that is news, and this one is among them still.

        Raises:
            ReservationConflict: somebody else was faster.
            ReservationNotFound: this node holds nothing of it.
        """
        reservation_id = request.reservation_id
        astray = _astray(self._state.lease(reservation_id).nodes, request)
        concerned = self._state.change_members(request, self._address, seconds_since_boot())
        lease = self._state.lease(reservation_id)
        if concerned is None:
            if not lease.has_node(self._address):
                await self._leases.release(reservation_id)
            return False
        self._pass_on(request, lease.request.owner, concerned if request.pass_on else astray)
        if not lease.has_node(self._address):
            _log.warning("this node is no longer part of %s: its part is released", lease.request.name)
            for mesh_id in [
                key for key, mesh in self._state.meshes.items() if mesh.spec.reservation_id == reservation_id
            ]:
                self._end_runs(mesh_id, request.ends or LEFT)
            await self._leases.release(reservation_id)
            return False
        self._leases.has_changed(reservation_id)
        for peer in concerned:
            if not lease.has_node(peer.address):
                self._mail.node_is_lost(peer.address, LEFT)
        changed = pb.MembersChanged(reservation_id=reservation_id, revision=lease.revision)
        for session in self._sessions:
            if session.may_read(reservation_id):
                session.send(members_changed=changed)
        return True

    def _pass_on(self, request: pb.ChangeMembersRequest, owner: str, to: Iterable[files_pb2.Peer]) -> None:
        nodes = [peer for peer in to if peer.address != self._address]
        owed = pb.UndertakeRequest(reservation_id=request.reservation_id, owner=owner, nodes=nodes, members=request)
        owed.members.pass_on = False
        self._owed.take(owed)


def _astray(nodes: Iterable[files_pb2.Peer], request: pb.ChangeMembersRequest) -> list[files_pb2.Peer]:
    """Return those nodes of a list of which whoever made the next one did not know."""
    known = {peer.address for peer in (*request.before, *request.nodes)}
    return [peer for peer in nodes if peer.address not in known]
