"""Rooms that are closed while they are asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from monarch_nb.allocator.gateway.rooms import GATEWAY, Room
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


async def test_a_call_under_way_fails_when_its_room_is_closed(tmp_path: Path) -> None:
    """It would end as if it had been cancelled: gRPC would never tell the other node, whose mail came to nothing."""
    there = asyncio.Event()
    server = await asyncio.start_unix_server(lambda *_: there.set(), tmp_path / "room")  # which says nothing

    async def nothing() -> None: ...

    pipe: Any = SimpleNamespace(path=tmp_path / "room", listen=nothing, close=server.close)
    outgoing: Any = SimpleNamespace(open=nothing, close=nothing)
    room = Room("bob", pipe, outgoing, Mock())
    await room.open()
    calls = [asyncio.ensure_future(room.call("Status", pb.StatusRequest(), GATEWAY)) for _ in range(2)]
    await there.wait()
    calls[1].cancel()
    await room.close()
    with pytest.raises(NodeUnreachable, match="the allocator of bob on this node does not answer"):
        await calls[0]
    with pytest.raises(asyncio.CancelledError):  # who asked does not want to know any more
        await calls[1]
    with pytest.raises(NodeUnreachable):
        await room.call("Status", pb.StatusRequest(), GATEWAY)
