"""Nodes that talk to nodes, most of all to pass files on: the client sends to one node, and each node to two others, so
no one sends to all.

The nodes that a message is still to reach travel with it. Each receiver cuts that list in two, sends the message to the
head of each half with the rest of it, and answers for the whole half. When a head does not answer to a call, its
half is served from here; when it is lost in the middle of a stream, its half is reported, and the client sends again
what is missing there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monarch_nb.config import patience

from monarch_nb.rpc.channel import OpenChannel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.errors import CertificateRefused, MonarchNbError, NodeUnreachable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.callers import acting_for
from monarch_nb.rpc.renewed_channel import RenewedChannel
from monarch_nb.rpc.status import error_to_json, translate

T = TypeVar("T", pb.SyncTreeRequest, pb.PutFilesRequest)
FAN_OUT = 2
CALL_TIMEOUT_S = patience(600.0)
"""A node may have gigabytes to write before it answers; a dead one is noticed at once."""


def split(peers: Sequence[pb.Peer]) -> list[tuple[pb.Peer, list[pb.Peer]]]:
    """Cut the nodes that a message is to reach into parts of the same size: (head, those that the head serves)."""
    parts = [list(peers[start::FAN_OUT]) for start in range(FAN_OUT)]
    return [(part[0], part[1:]) for part in parts if part]


class Relay:
    """A node's own connections to other nodes, opened when first used. It calls for the owners of reservations.

    Args:
        node_id: of the node, for messages.
        owner_of: whose a reservation is.
        open_channel: to another node.
        certificate: what the node shows there now: when it is another, channels are made anew.
    """

    def __init__(
        self,
        node_id: str,
        owner_of: Callable[[str], str],
        open_channel: OpenChannel,
        certificate: Callable[[], object] = lambda: None,
    ) -> None:
        self._node_id, self._owner_of = node_id, owner_of
        self._open_channel, self._certificate = open_channel, certificate
        self._channels: dict[str, RenewedChannel] = {}  # making one, and its stub, costs as much as a call

    async def call(
        self, peer: pb.Peer, method: str, request: Any, timeout_s: float, *, owner: str = "", as_node: bool = False
    ) -> Any:
        """Call a method of another node about a reservation; a failure raises an error of monarch_nb.

        Args:
            owner: of a reservation that this node knows no longer.
            as_node: in the name of this node, and for no person.
        """
        metadata = () if as_node else acting_for(owner) or self._for(request)
        try:
            return await getattr(self._stub(peer), method)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise self._refused(translate(error, peer.node_id)) from None

    def open_session(self, name: str, peer: pb.Peer) -> Any:
        """Open a session with another node in a person's name."""
        return self._stub(peer).Session(metadata=acting_for(name))

    def _stub(self, peer: pb.Peer) -> Any:
        channel = self._channels.get(peer.address)
        if channel is None:
            opening = functools.partial(self._open_channel, peer.address)
            channel = self._channels[peer.address] = RenewedChannel(opening, self._certificate)
        return channel.renew().stub

    def _refused(self, error: MonarchNbError) -> MonarchNbError:
        """Say which node it is that other nodes do not let in any more."""
        if isinstance(error, CertificateRefused):
            return CertificateRefused(f"{self._node_id} is refused by another node: {error}")
        return error

    def _for(self, request: Any) -> tuple[tuple[str, bytes], ...]:
        return acting_for(self._owner_of(request.reservation_id))

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def sync(self, request: pb.SyncTreeRequest) -> list[pb.NodeSynced]:
        """Pass a change on to `request.peers`; return what all of them say."""
        answers = await asyncio.gather(*(self._sync(request, head, rest) for head, rest in split(request.peers)))
        return [node for part in answers for node in part]

    async def _sync(self, request: pb.SyncTreeRequest, head: pb.Peer, rest: list[pb.Peer]) -> list[pb.NodeSynced]:
        passed = _copied(request, rest)
        try:
            call = self._stub(head).SyncTree(passed, timeout=CALL_TIMEOUT_S, metadata=self._for(passed))
            reply: pb.SyncTreeReply = await call
        except grpc.aio.AioRpcError as error:
            why = self._refused(translate(error, head.node_id))
            failed = pb.NodeSynced(node_id=head.node_id, error_json=error_to_json(why))
            return [failed, *await self.sync(passed)]
        return list(reply.nodes)

    def open_streams(self, first: pb.PutFilesRequest) -> list[Branch]:
        """Begin to pass a stream of content on to `first.peers`."""
        branches = []
        for head, rest in split(first.peers):
            stream = self._stub(head).PutFiles(timeout=CALL_TIMEOUT_S, metadata=self._for(first))
            branches.append(Branch(stream, head, rest, _copied(first, rest)))
        return branches


class Branch:
    """A stream of content to one node, which passes it on to others."""

    def __init__(self, stream: Any, head: pb.Peer, rest: list[pb.Peer], opening: pb.PutFilesRequest) -> None:
        self._stream, self._head, self._rest = stream, head, rest
        self._opening: pb.PutFilesRequest | None = opening
        self._lost = False

    async def send(self, request: pb.PutFilesRequest) -> None:
        """Pass one message on; nothing happens when the node is lost."""
        if self._opening is not None:
            self._opening.batch.CopyFrom(request.batch)
            request, self._opening = self._opening, None
        if not self._lost:
            try:
                await self._stream.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._lost = True

    async def finish(self) -> list[pb.NodeSynced]:
        """End the stream; return what every node behind it says."""
        try:
            if self._opening is not None:
                await self._stream.write(self._opening)
            await self._stream.done_writing()
            reply: pb.PutFilesReply = await self._stream
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not self._stream.done():
                raise
            lost = error_to_json(NodeUnreachable(f"{self._head.node_id} was lost on the way", self._head.node_id))
            return [pb.NodeSynced(node_id=peer.node_id, error_json=lost) for peer in (self._head, *self._rest)]
        return list(reply.nodes)

    def cancel(self) -> None:
        """The sender is gone."""
        self._stream.cancel()


def _copied(request: T, peers: list[pb.Peer]) -> T:
    """Return a request that is to reach other peers."""
    passed = type(request)()
    passed.CopyFrom(request)
    del passed.peers[:]
    passed.peers.extend(peers)
    return passed
