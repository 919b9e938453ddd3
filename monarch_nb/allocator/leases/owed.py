"""Releases that a node has not heard of: it was away when its reservation was given back. Nodes of the reservation that
were there are told which, and tell it when it is back, until it has answered.
"""

from __future__ import annotations

import asyncio
import logging

from monarch_nb.allocator.files.relay import Relay
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2

_log = logging.getLogger(__name__)

TELL_AGAIN_S = 2.0
"""Between attempts to reach a node: nothing tells when it is there again."""
PEER_TIMEOUT_S = 30.0
MOST = 1000
"""Of releases that are owed: a pool whose nodes never come back does not fill the database."""


class Owed:
    """What this node has to tell others.

    Args:
        relay: reaches them.
    """

    def __init__(self, records: Records, relay: Relay) -> None:
        self._records, self._relay = records, relay
        self._telling: dict[tuple[str, str], asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one owed."""
        for request in self._records.owed():
            self._tell_all(request)

    def take(self, request: pb.ReleaseRequest) -> None:
        """Release a reservation on the nodes that are absent, when they answer."""
        if request.absent and len(self._telling) + len(request.absent) <= MOST:
            self._records.save_owed(request)
            self._tell_all(request)

    def close(self) -> None:
        """Tell nobody any more; the next allocator does."""
        for task in self._telling.values():
            task.cancel()

    def _tell_all(self, request: pb.ReleaseRequest) -> None:
        for peer in request.absent:
            key = request.reservation_id, peer.address
            if key not in self._telling:
                task = self._telling[key] = asyncio.create_task(self._tell(request.reservation_id, request.owner, peer))
                task.add_done_callback(lambda _, key=key: self._telling.pop(key))  # type: ignore[misc]

    async def _tell(self, reservation_id: str, owner: str, peer: files_pb2.Peer) -> None:
        request = pb.ReleaseRequest(reservation_id=reservation_id)
        while True:
            try:
                await self._relay.call(peer, "Release", request, PEER_TIMEOUT_S, owner=owner)
                _log.info("%s is back, and has released reservation %s", peer.node_id, reservation_id)
                break
            except NodeUnreachable:
                await asyncio.sleep(TELL_AGAIN_S)
            except MonarchNbError as error:
                _log.warning("%s does not release reservation %s: %s", peer.node_id, reservation_id, error)
                break
        self._records.pay(reservation_id, peer.address)
