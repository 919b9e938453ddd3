"""Waiting in line, as a client does it: its place, its turn, and nodes that come and go meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.leases.line import Line as NodeLine
from monarch_nb.client.pools import line as lines
from monarch_nb.client.pools.facts.choosing import Shape, who_holds
from monarch_nb.client.pools.line import Line
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


class FakeConnection:
    def __init__(self, name: str) -> None:
        self.name, self.line = name, NodeLine()
        self.error: MonarchNbError | None = None
        self.broken = asyncio.Event()

    async def stream(self, method: str, request: pb.WaitRequest) -> AsyncGenerator[pb.WaitReply, None]:
        assert method == "Wait"
        if self.error:
            raise self.error
        replies = self.line.wait(request)
        broken = asyncio.ensure_future(self.broken.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(replies))
                await asyncio.wait({coming, broken}, return_when=asyncio.FIRST_COMPLETED)
                if self.broken.is_set():
                    raise NodeUnreachable(f"{self.name} is away", self.name)
                yield coming.result()
        finally:
            for one in (coming, broken):
                one.cancel()
            await asyncio.wait({coming, broken})
            await replies.aclose()

    def fail(self, error: MonarchNbError) -> None:
        """From now on, and whoever waits here does so no longer."""
        self.error = error
        self.broken.set()


class FakePool:
    def __init__(self, *names: str) -> None:
        self.nodes = {name: FakeConnection(name) for name in names}

    async def discover(self) -> list[Any]:
        return list(self.nodes.values())

    async def ask(self) -> list[Any]:
        held = pb.DescribeReply(holders=[pb.Holder(reservation="dev", owner="ann", procs=4)])
        return [(SimpleNamespace(identity=None), pb.StatusReply(node=held))]


class Client:
    def __init__(self, pool: Any, longest_s: float | None = None) -> None:
        self.said: list[str] = []
        self.line = Line(pool, "more", Shape(2, 4, 0), longest_s, self.said.append)
        self._turn: asyncio.Task[None] | None = None

    async def has_turn(self) -> bool:
        """Wait on in the background; return whether it is its turn."""
        self._turn = self._turn or asyncio.ensure_future(self.line.turn())
        for _ in range(60):
            await asyncio.sleep(0)
        if not self._turn.done():
            return False
        turn, self._turn = self._turn, None
        turn.result()
        return True

    async def leave(self) -> None:
        if self._turn:
            self._turn.cancel()
        self.line.leave()
        for _ in range(60):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what nodes tell counts."""
    monkeypatch.setattr(lines, "LOOK_EVERY_S", 3600.0)


async def test_who_hears_of_no_place_any_more_does_not_take_it_for_the_first() -> None:
    """It had stood in the line of the node alone that gave the ticket, and not yet in those of others."""
    pool = FakePool("node0", "node1")
    first, second = Client(pool), Client(pool)
    while await first.has_turn():
        pass
    pool.nodes["node1"].error = NodeUnreachable("node1 is away", "node1")
    assert not await second.has_turn()
    pool.nodes["node0"].fail(NodeUnreachable("node0 is away", "node0"))
    assert not await second.has_turn()
    await first.leave()
    await second.leave()


async def test_who_may_not_wait_is_told() -> None:
    pool = FakePool("node0")
    pool.nodes["node0"].error = AccessDenied("not you")
    client = Client(pool)
    with pytest.raises(AccessDenied, match="not you"):
        await client.has_turn()
    await client.leave()


async def test_without_any_node_it_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOOK_EVERY_S", 1e-6)
    await asyncio.wait_for(Line(FakePool(), "more", Shape(1, 1, 0), None, lambda _: None).turn(), 60)  # type: ignore[arg-type]


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
