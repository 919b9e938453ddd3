"""A node that others do not let in with its old certificate calls them with the new one, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.files.relay import Relay
from monarch_nb.config import TrustPaths
from monarch_nb.errors import CertificateRefused
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.rpc.callers import caller_of
from monarch_nb.rpc.channel import listen, make_server, open_channel
from monarch_nb.rpc.status import refuse
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import NODE


class Strict(service.AllocatorServicer):
    """Another node, which knows that a certificate was revoked."""

    def __init__(self) -> None:
        self.revoked = ""
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        certificate = caller_of(context).certificate
        assert certificate is not None
        if request.reservation_id == "slow":
            self.asked.set()
            await self.go_on.wait()
        elif certificate.fingerprint == self.revoked:
            await refuse(context, CertificateRefused("was revoked"))
        return pb.ReleaseReply()


@pytest.fixture
async def authority(tmp_path: Path) -> Authority:
    return Authority.create("lab", TrustPaths(tmp_path))


@pytest.fixture
async def others(authority: Authority) -> AsyncIterator[tuple[Strict, Peer]]:
    own = authority.issue("node", NODE)
    strict, server = Strict(), make_server()
    service.add_AllocatorServicer_to_server(strict, server)  # type: ignore[no-untyped-call]
    port = listen(server, "127.0.0.1:0", lambda: own)
    await server.start()
    yield strict, Peer(node_id="host4", address=f"127.0.0.1:{port}")
    await server.stop(None)


async def test_the_new_certificate_is_shown_to_nodes_that_were_called_with_the_old_one(
    authority: Authority, others: tuple[Strict, Peer]
) -> None:
    strict, peer = others
    certificate = authority.issue("node", NODE)
    strict.revoked = certificate.fingerprint
    relay = Relay("host1", lambda _: "anna", lambda address: open_channel(address, certificate), lambda: certificate)
    slow = asyncio.create_task(relay.call(peer, "Release", pb.ReleaseRequest(reservation_id="slow"), 60.0))
    await asyncio.wait_for(strict.asked.wait(), 60)
    with pytest.raises(CertificateRefused, match="host1 is refused by another node: was revoked"):
        await relay.call(peer, "Release", pb.ReleaseRequest(reservation_id="r"), 60.0)
    certificate = authority.issue("node", NODE)
    await relay.call(peer, "Release", pb.ReleaseRequest(reservation_id="r"), 60.0)
    strict.go_on.set()
    await slow  # what was under way goes on
    await relay.close()
