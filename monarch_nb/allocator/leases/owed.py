"""What a node is to end and has not heard of: it was away when its reservation was given back, or its place in it to
another node, or the client died that would have said so. Another node was told, and tells it when it is there, until it
has answered.
"""

from __future__ import annotations

import asyncio
import logging

from monarch_nb.allocator.files.relay import Relay
from monarch_nb.allocator.recovery.records import Records, owed_key
from monarch_nb.config import cadence, patience
from monarch_nb.errors import CertificateRefused, MonarchNbError, NodeUnreachable, TrustError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2

_log = logging.getLogger(__name__)

TELL_AGAIN_S = cadence(2.0)
"""Between attempts to reach a node: nothing tells when it is there again."""
MOST = 5000
"""Of nodes that are to be told something: a pool whose nodes never come back does not fill the database."""


class Owed:
    """What this node has to tell others.

    Args:
        relay: reaches them.
    """

    def __init__(self, records: Records, relay: Relay) -> None:
        self._records, self._relay = records, relay
        self._telling: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one owed."""
        for request in self._records.owed():
            self._tell_all(request)

    def take(self, request: pb.UndertakeRequest) -> None:
        """End a mesh or a reservation on nodes, when they answer, or let them know its nodes."""
        if request.nodes and len(self._telling) + len(request.nodes) <= MOST:
            self._records.save_owed(request)
            self._tell_all(request)

    def close(self) -> None:
        """Tell nobody any more; the next allocator does."""
        for task in self._telling.values():
            task.cancel()

    def _tell_all(self, request: pb.UndertakeRequest) -> None:
        for peer in request.nodes:
            key = owed_key(request, peer)
            if key not in self._telling:
                task = self._telling[key] = asyncio.create_task(self._tell(request, peer))
                task.add_done_callback(lambda _, key=key: self._telling.pop(key))  # type: ignore[misc]

    async def _tell(self, request: pb.UndertakeRequest, peer: files_pb2.Peer) -> None:
        method, message = _call(request)
        what = f"{method} of reservation {request.reservation_id} {request.mesh_id}".rstrip()
        refusal = ""
        while True:
            try:
                await self._relay.call(peer, method, message, patience(30.0), owner=request.owner)
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
        self._records.pay(owed_key(request, peer))


def _call(request: pb.UndertakeRequest) -> tuple[str, pb.ReleaseRequest | pb.StopMeshRequest | pb.ChangeMembersRequest]:
    """Return what to call a node for."""
    if request.HasField("members"):
        return "ChangeMembers", request.members
    if request.mesh_id:
        return "StopMesh", pb.StopMeshRequest(mesh_id=request.mesh_id)
    release = pb.ReleaseRequest(reservation_id=request.reservation_id, by=request.by, asked_at=request.asked_at)
    return "Release", release
