"""What waits in a gateway for a room, or a client, that does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from monarch_nb.allocator.gateway import sessions
from monarch_nb.allocator.gateway.frames import MOST_COME_BYTES, Frames
from monarch_nb.allocator.gateway.service import GatewayService
from monarch_nb.allocator.gateway.sessions import Carried
from monarch_nb.allocator.sessions.sessions import MAX_UNSENT_BYTES, Session
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.callers import Caller
from monarch_nb.trust.identity import USER

TIMEOUT_S = 60.0
PART = 100_000
PARTS = 1000
"""100 MB: several times what may wait, together with what is on its way in the kernel."""
ALICE = Caller("alice", USER)


class Room:
    """A room of which the test has the other end.

    Attributes:
        far: what the gateway says comes there. Nothing is read before somebody iterates over it.
    """

    def __init__(self, account: str) -> None:
        self.account, self.far = account, Frames(MAX_UNSENT_BYTES)

    async def open_session(self, frames: Frames, _: Caller, opening: pb.Open) -> None:
        near, far = socket.socketpair()
        await self.far.open(far)
        await frames.open(near, pb.SessionRequest(open=opening).SerializeToString())


@pytest.fixture
def rooms() -> Mock:
    """Of two accounts, with a mesh each, which are called the same."""
    made = {name: Room(name) for name in ("alice", "bob")}

    async def of_mesh(mesh_id: str) -> Room:
        return made[mesh_id]

    return Mock(made=made, of_mesh=of_mesh, account_of_mesh=lambda mesh_id: mesh_id, is_in=lambda *_: True)


@pytest.fixture
async def carried(rooms: Mock) -> AsyncIterator[Carried]:
    made = Carried(rooms, Session(), ALICE, pb.Open(client_id="c"), Mock())
    yield made
    made.close()
    for room in rooms.made.values():
        room.far.close()
    await asyncio.sleep(0)


def submit(mesh_id: str, number: int) -> pb.SessionRequest:
    run = pb.Submit(mesh_id=mesh_id)
    run.run.run_id, run.run.cell.code = str(number), "x" * PART
    return pb.SessionRequest(submit=run)


async def settled(count: Any) -> int:
    """Return a count that does not change any more: everything happens in this process."""
    same, before = 0, -1
    while same < 200:
        await asyncio.sleep(0)
        same, before = (same + 1, before) if count() == before else (0, count())
    return before


async def heard_of(carried: Carried, mesh_id: str) -> tuple[list[int], asyncio.Task[None]]:
    """Have a client say a lot, and return what has been heard of it, and who hears."""
    heard: list[int] = []

    async def said() -> AsyncIterator[pb.SessionRequest]:
        for number in range(PARTS):
            heard.append(number)
            yield submit(mesh_id, number)

    service = GatewayService(Mock(), Mock(), Mock())

    async def hear() -> None:
        service._carried[asyncio.current_task()] = carried
        async for request in service._heard(said()):
            carried.say(request)

    return heard, asyncio.create_task(hear())


async def test_of_a_client_whose_room_does_not_read_so_much_is_heard_and_then_the_rest(
    carried: Carried, rooms: Mock
) -> None:
    heard, hearing = await heard_of(carried, "bob")
    waiting_bytes = PART * await settled(lambda: len(heard))
    assert waiting_bytes < MAX_UNSENT_BYTES + MOST_COME_BYTES + (8 << 20), "the last: kernel's buffers, and this test"
    carried.say(submit("alice", 1))  # another room is not kept waiting
    async with asyncio.timeout(TIMEOUT_S):
        assert pb.SessionRequest.FromString(await anext(rooms.made["alice"].far)).HasField("open")
        assert pb.SessionRequest.FromString(await anext(rooms.made["alice"].far)).submit.run.run_id == "1"
        theirs = [pb.SessionRequest.FromString(await anext(rooms.made["bob"].far)) for _ in range(PARTS + 1)]
        await hearing
    assert [one.submit.run.run_id for one in theirs[1:]] == [str(number) for number in range(PARTS)]


async def test_of_a_client_whose_room_is_not_open_yet_so_much_is_heard(
    carried: Carried, rooms: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, open_session = asyncio.Event(), rooms.made["bob"].open_session

    async def late(*arguments: Any) -> None:
        await may_open.wait()
        await open_session(*arguments)

    monkeypatch.setattr(rooms.made["bob"], "open_session", late)
    heard, hearing = await heard_of(carried, "bob")
    assert PART * await settled(lambda: len(heard)) < MAX_UNSENT_BYTES + 2 * PART
    may_open.set()
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(PARTS + 1):
            await anext(rooms.made["bob"].far)
        await hearing


async def test_a_room_is_not_read_faster_than_the_client_reads(rooms: Mock) -> None:
    session = Session()
    carried = Carried(rooms, session, ALICE, pb.Open(client_id="c"), Mock())
    carried.say(submit("bob", 1))
    far = rooms.made["bob"].far
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(2):
            await anext(far)
    far.limit(PART)
    output = pb.Output(run_id="1", ranks=[pb.RankOutput(items=[pb.OutputItem(notice="x" * PART)])])
    events = pb.SessionEvents(events=[pb.SessionEvent(output=output)]).SerializeToString()
    said: list[int] = []

    async def say() -> None:
        for number in range(PARTS):
            await far.room()
            far.send(events)
            said.append(number)

    saying = asyncio.create_task(say())
    assert PART * await settled(lambda: len(said)) < MAX_UNSENT_BYTES + MOST_COME_BYTES + (8 << 20)
    assert session.unsent_bytes < MAX_UNSENT_BYTES + 2 * PART
    read = 0
    async with asyncio.timeout(TIMEOUT_S):
        while read < PARTS:
            batch = await session.batches()
            assert batch is not None
            read += len(batch.events)
    await saying
    carried.close()
    far.close()
    await asyncio.sleep(0)


async def test_the_more_clients_a_person_has_the_less_may_wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    service = GatewayService(Mock(), Mock(), Mock())
    made = {}
    for number in range(2 * sessions.MOST_OF_PERSON_BYTES // MAX_UNSENT_BYTES):
        session = Session()
        made[number] = session
        service._carried[number] = Carried(Mock(), session, ALICE, pb.Open(), Mock())  # type: ignore[index]
        service._share_out("alice")
    other = Session()
    service._carried[-1] = Carried(Mock(), other, Caller("bob", USER), pb.Open(), Mock())  # type: ignore[index]
    service._share_out("bob")
    assert sum(session.most_unsent_bytes for session in made.values()) == sessions.MOST_OF_PERSON_BYTES
    assert other.most_unsent_bytes == MAX_UNSENT_BYTES
    for carried in service._carried.values():
        carried.close()
    await asyncio.sleep(0)
