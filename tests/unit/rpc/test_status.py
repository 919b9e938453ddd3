"""What gRPC says of TLS becomes what to do."""

import asyncio
from pathlib import Path

import grpc
import pytest

from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import NodeUnreachable
from monarch_nb.rpc.channel import listen, make_server, open_channel
from monarch_nb.rpc.status import translate
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.pools import make_paths


async def test_a_node_of_another_authority_is_told_apart_from_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "old"))
    me = Authority.create("lab", make_paths("lab")).issue("ada", "admin")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "anew"))
    node = Authority.create("lab", make_paths("lab")).issue("node", "node")
    server = make_server()
    port = listen(server, "127.0.0.1:0", lambda: node)
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", me) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async with asyncio.timeout(60.0):
                    await channel.unary_unary("/any/Any")(b"")
    finally:
        await server.stop(None)
    told = translate(failed.value, "host1")
    assert isinstance(told, NodeUnreachable)
    assert "host1 shows no certificate that you believe" in str(told)
