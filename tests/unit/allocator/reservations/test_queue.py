"""The line of those who wait for a node's slots: who is told which place, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from monarch_nb.allocator.reservations import queue as lines
from monarch_nb.allocator.reservations.queue import Queue
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from unit.allocator.idle_node import NodeWithoutProcesses, reserve

Place = tuple[int, bool]


class Waiting:
    """A client that waits, and reads what it is told."""

    def __init__(self, line: Queue, *, ticket: float = 0.0, **asked: Any) -> None:
        request = pb.WaitRequest(ticket=ticket, **asked)
        self.ticket = 0.0
        self._replies: AsyncGenerator[pb.WaitReply, None] = line.wait(request)
        self._next: asyncio.Task[pb.WaitReply] | None = None

    async def told(self) -> Place | None:
        """Return place and whether slots may be free; None when nothing new was said."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._replies))
        for _ in range(5):
            await asyncio.sleep(0)
        if not self._next.done():
            return None
        reply, self._next = self._next.result(), None
        self.ticket = reply.ticket
        return reply.place, reply.freed

    async def leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
        await self._replies.aclose()


async def test_who_came_first_is_first_and_all_learn_that_slots_are_free() -> None:
    line = Queue(NodeState(0), ())
    first, second, third = (Waiting(line, procs=1) for _ in range(3))
    gpus = Waiting(line, gpus=8)
    assert await gpus.told() == (1, True), "a line of their own"
    assert [await one.told() for one in (first, second, third)] == [(1, True), (2, True), (3, True)]
    line.slots_are_free()
    line.slots_are_free()
    assert [await one.told() for one in (first, second, third)] == [(1, True), (2, True), (3, True)]
    assert [await one.told() for one in (first, second, third)] == [None, None, None]
    await first.leave()
    assert [await one.told() for one in (second, third)] == [(1, False), (2, False)]
    await third.leave()
    assert await second.told() is None, "nothing has changed for it"
    await second.leave()
    await gpus.leave()
    assert len(line) == 0


async def test_tickets_grow_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Queue(NodeState(0), ())
    now = time.time()
    tickets = []
    for clock in (now, now - 3600.0, now, now + 1.0, now + 1.0):
        monkeypatch.setattr(lines.time, "time", lambda clock=clock: clock)
        one = Waiting(line, procs=1)
        await one.told()
        tickets.append(one.ticket)
        await one.leave()
    assert tickets == sorted(set(tickets))
    far = Waiting(line, procs=1, ticket=1e300)
    await far.told()
    one = Waiting(line, procs=1)
    await one.told()
    assert one.ticket == pytest.approx(now + 1.0), "a ticket from the future does not count"
    await far.leave()
    await one.leave()


async def test_not_everybody_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_WAITING", 1)
    line = Queue(NodeState(0), ())
    first, second = Waiting(line, procs=1), Waiting(line, procs=1)
    assert await first.told() == (1, True)
    with pytest.raises(MonarchNbError, match="1 clients wait in line already"):
        await second.told()
    await first.leave()


async def test_one_that_is_to_grow_does_not_wait_for_itself(node: NodeWithoutProcesses) -> None:
    reserve(node)
    lease = node.state.leases["r"].request
    line = node.leases.queue
    itself = Waiting(line, procs=4, name=lease.name, owner=lease.owner, wait_id="itself")
    others = Waiting(line, procs=4, name=lease.name, owner="bob", wait_id="bob")
    await itself.told()
    await others.told()
    assert [one.wait_id for one in node.leases.queue.waiting_for("r")] == ["bob"]
    await itself.leave()
    await others.leave()
