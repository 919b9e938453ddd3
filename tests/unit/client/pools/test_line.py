"""Waiting in line, as a client does it: its place, its turn, and nodes that come and go meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from monarch_nb.client.pools import line as lines
from monarch_nb.client.pools.choosing import Shape, who_holds
from monarch_nb.client.pools.line import Line
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


class Node:
    """A node that tells what the test puts into `replies`: a place in its line, or an error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replies: asyncio.Queue[pb.WaitReply | MonarchNbError] = asyncio.Queue()

    async def stream(self, method: str, request: pb.WaitRequest) -> AsyncGenerator[pb.WaitReply, None]:
        while not isinstance(reply := await self.replies.get(), MonarchNbError):
            yield reply
        raise reply


class FakePool:
    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes

    async def discover(self) -> list[Any]:
        return list(self._nodes)

    async def ask(self) -> list[Any]:
        raise NodeUnreachable("nobody answers")


def line(*nodes: Node) -> Line:
    pool: Any = FakePool(*nodes)
    return Line(pool, "more", Shape(2, 4, 0), None, lambda _: None)


async def test_who_hears_of_no_place_any_more_does_not_take_it_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had stood in the line of the node alone that gave the ticket, and not yet in those of others."""
    monkeypatch.setattr(lines, "LOOK_EVERY_S", 3600.0)
    node0, node1 = Node("node0"), Node("node1")
    second = line(node0, node1)
    turn = asyncio.ensure_future(second.turn())
    node1.replies.put_nowait(NodeUnreachable("node1 is away", "node1"))
    for reply in (pb.WaitReply(place=2, freed=True, ticket=7.0), NodeUnreachable("node0 is away", "node0")):
        node0.replies.put_nowait(reply)
        for _ in range(60):
            await asyncio.sleep(0)
        assert not turn.done()
    turn.cancel()
    second.leave()


async def test_who_may_not_wait_is_told() -> None:
    node = Node("node0")
    node.replies.put_nowait(AccessDenied("not you"))
    with pytest.raises(AccessDenied, match="not you"):
        await line(node).turn()


async def test_without_any_node_it_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOOK_EVERY_S", 1e-6)
    await asyncio.wait_for(line().turn(), 60)


def test_who_holds_what() -> None:
    nodes = [
        pb.DescribeReply(node_id="node0", holders=[pb.Holder(reservation="dev", owner="ann", gpus=4)]),
        pb.DescribeReply(
            node_id="node1",
            holders=[
                pb.Holder(reservation="dev", owner="ann", gpus=4),
                pb.Holder(reservation="cpu", owner="bob", procs=2),
            ],
            gpus=[pb.Gpu(index=5, used_by=[pb.GpuProcess(pid=4711, name="python", user="bob")])],
        ),
    ]
    assert who_holds(Shape(1, 0, 1), nodes) == ("dev (ann) holds 8 gpus; node1: GPU 5 is busy: pid 4711 (python, bob)")
    assert who_holds(Shape(1, 1, 0), nodes) == "cpu (bob) holds 2 procs"
    assert who_holds(Shape(1, 1, 0), nodes, ("cpu", "bob")) == "", "one that is to grow does not wait for itself"
    assert who_holds(Shape(1, 1, 0), nodes, ("cpu", "ann")) == "cpu (bob) holds 2 procs"
