"""One client at a time has a name of a reservation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from monarch_nb.client.pools import leasing
from monarch_nb.client.pools.leasing import Claim
from monarch_nb.proto import allocator_pb2 as pb


class Node:
    """A node that one client asks at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def stream(self, method: str, request: pb.ClaimRequest) -> AsyncGenerator[pb.ClaimReply, None]:
        assert (method, request.name) == ("Claim", "monarch")
        async with self.lock:
            yield pb.ClaimReply()


def claim(node: Node) -> Claim:
    return Claim(cast("Any", node), "r", "monarch")


@pytest.mark.parametrize("goes_away", [False, True])
async def test_the_next_one_is_told_why_it_waits_and_gets_it_unless_it_goes_away(
    goes_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "SAY_S", 0.0)
    node, said = Node(), asyncio.Event()
    first, second = claim(node), claim(node)
    await first.take(lambda: None)
    waiting = asyncio.ensure_future(second.take(said.set))
    await said.wait()
    assert not waiting.done()
    if goes_away:
        waiting.cancel()
    await first.give_back()
    await asyncio.wait({waiting})
    assert node.lock.locked() != goes_away
    if not goes_away:
        await second.give_back()
    assert not node.lock.locked()
