"""Rooms that open while they close, or end while they open."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from monarch_nb.allocator.gateway.rooms import GATEWAY, Room, Rooms
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import NodeUnreachable, WardenRefused
from monarch_nb.proto import allocator_pb2 as pb

TIMEOUT_S = 60.0


class Starter:
    """Has no processes: what it opens lives until it closes it, or a test says that it has ended.

    Attributes:
        asked: what it was asked for, in turn. may_close: cleared by tests that want a close to last.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_close, self.is_closing = threading.Event(), threading.Event()
        self.may_close.set()
        self._lives: dict[str, tuple[int, int]] = {}

    def accounts(self, names: list[str]) -> dict[str, Mock]:
        return {name: Mock(account=name, refused="") for name in names}

    def open_room(self, account: str) -> Mock:
        self.asked.append("open_room")
        assert account not in self._lives, "there is one already"
        self._lives[account] = os.pipe()
        ready, end = os.pipe()
        os.write(end, b'{"serving": "here"}\n')
        os.close(end)
        return Mock(pidfd=os.dup(self._lives[account][0]), ready=ready)

    def room(self, account: str) -> Mock:
        self.asked.append("room")
        if account not in self._lives:
            raise WardenRefused("there is none")
        return Mock(pidfd=os.dup(self._lives[account][0]))

    def reserve_group(self, *_: object) -> None:
        pass

    def way_out(self, account: str) -> Mock:
        raise WardenRefused("it does not listen")

    def close_room(self, account: str) -> None:
        self.is_closing.set()
        self.may_close.wait(TIMEOUT_S)
        self.asked.append("close_room")
        self.end(account)

    def end(self, account: str) -> None:
        """Its process ends."""
        for descriptor in self._lives.pop(account, ()):
            os.close(descriptor)


@pytest.fixture
def starter() -> Starter:
    return Starter()


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mnb-", dir="/tmp") as directory:  # short: socket paths end at 107 bytes
        yield Path(directory)


@pytest.fixture
async def rooms(starter: Starter, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rooms]:
    """Of a node where nobody holds anything; all that rooms are asked they do."""

    async def call(self: Room, method: str, *_: object) -> object:
        if self.is_down.is_set():
            raise NodeUnreachable(f"{method}: it has ended")
        return pb.StatusReply()

    monkeypatch.setattr(Room, "call", call)
    made = Rooms(starter, sockets, NodeState(4), Mock(), Mock(), Mock())  # type: ignore[arg-type]
    yield made
    starter.may_close.set()
    for account in list(starter._lives):
        starter.end(account)
    await made.close(end_processes=False)


def hold(rooms: Rooms) -> pb.ReserveRequest:
    request = pb.ReserveRequest(reservation_id="r", name="dev", owner="alice", procs=1)
    rooms._state.reserve(request)
    rooms._accounts["alice"] = "alice"
    return request


async def as_far_as_it_comes() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_reserves_while_their_room_closes_gets_the_next_one(rooms: Rooms, starter: Starter) -> None:
    before = await rooms.room("alice")
    starter.may_close.clear()
    closing = asyncio.create_task(rooms._close_unused("alice"))
    await asyncio.to_thread(starter.is_closing.wait, TIMEOUT_S)
    starter.asked.clear()
    request = hold(rooms)
    reserving = asyncio.create_task(rooms.reserve(request, []))
    await as_far_as_it_comes()
    starter.may_close.set()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(closing, reserving)
        room = await rooms.room("alice")
    assert room is not before
    assert not room.is_down.is_set()
    assert starter.asked == ["close_room", "room", "open_room"]


async def test_who_holds_something_when_the_time_is_up_keeps_their_room(rooms: Rooms, starter: Starter) -> None:
    opening = asyncio.create_task(rooms.room("alice"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(rooms._close_unused("alice"))
    await asyncio.sleep(0)
    hold(rooms)
    room = await opening
    await closing
    assert await rooms.room("alice") is room
    assert "close_room" not in starter.asked


async def test_a_room_that_ends_while_it_is_opened_is_opened_anew(
    rooms: Rooms, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def take_in(room: Room) -> None:
        if not ended.is_set():
            ended.set()
            starter.end("alice")
            await room.is_down.wait()

    monkeypatch.setattr(rooms, "_take_in", take_in)
    with pytest.raises(NodeUnreachable, match="has ended"):
        await rooms.room("alice")
    room = await rooms.room("alice")
    assert not room.is_down.is_set()


async def test_of_a_room_that_did_not_answer_no_descriptor_is_kept(
    rooms: Rooms, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(room: Room) -> None:
        raise NodeUnreachable("it does not answer")

    monkeypatch.setattr(rooms, "_take_in", silent)
    for _ in range(3):
        with pytest.raises(NodeUnreachable):
            await rooms.room("alice")
    assert starter.asked == ["room", "open_room", "room", "room"]
    there = os.fstat(starter._lives["alice"][0])
    held = [one for one in map(int, os.listdir("/proc/self/fd")) if _is(one, there)]
    assert len(held) == 2, "both ends of what stands for the process, and no copy"


async def test_a_room_that_does_not_answer_keeps_no_gateway_from_its_end(
    rooms: Rooms, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(room: Room) -> None:
        asked.set()
        await never.wait()

    monkeypatch.setattr(rooms, "_take_in", silent)
    opening = asyncio.create_task(rooms.room("alice"))
    async with asyncio.timeout(TIMEOUT_S):
        await asked.wait()
        await rooms.close(end_processes=True)
    assert starter.asked[-1] == "close_room"
    with pytest.raises(asyncio.CancelledError):
        await opening


def _is(descriptor: int, file: os.stat_result) -> bool:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)


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
