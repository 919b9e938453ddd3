"""Sending a change to nodes that answer as they like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from monarch_nb.client.transfer import Sender
from monarch_nb.proto import files_pb2 as pb


class Stubborn:
    """A node that says the same whatever it gets."""

    def __init__(self, name: str, **answer: Any) -> None:
        self.name, self.address, self._answer = name, f"unix:/{name}", answer

    async def unary(self, _: str, request: pb.SyncTreeRequest, timeout_s: float) -> pb.SyncTreeReply:
        others = [pb.NodeSynced(node_id=peer.node_id, **STUBBORN[peer.node_id]) for peer in request.peers]
        return pb.SyncTreeReply(nodes=[pb.NodeSynced(node_id=self.name, **self._answer), *others])

    async def send_stream(self, _: str, messages: AsyncIterator[Any], timeout_s: float) -> pb.PutChunksReply:
        async for _message in messages:
            pass
        return pb.PutChunksReply(nodes=[pb.NodeStored(node_id=self.name)])


STUBBORN: dict[str, dict[str, Any]] = {"node0": {"needs_whole": True}, "node1": {"missing": bytes(32)}}


async def test_every_node_that_gets_no_end_is_named() -> None:
    change = pb.TreeChange(version="v", whole=True)
    sender = Sender("r", lambda: change, lambda names: ((name, b"x") for name in names))
    connections: list[Any] = [Stubborn(name, **answer) for name, answer in STUBBORN.items()]
    transfer = await sender.send(connections, change, [])
    assert not transfer.applied
    assert {name: str(error) for name, error in transfer.failed.items()} == {
        name: f"{name} does not get all the files that it needs: sync again" for name in STUBBORN
    }
