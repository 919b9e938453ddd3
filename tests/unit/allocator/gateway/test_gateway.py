"""What a gateway answers by itself, whose words a room believes, and who holds the locks of GPUs."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest

from monarch_nb.allocator.__main__ import main, parse
from monarch_nb.allocator.gateway.access import GatewayAccess
from monarch_nb.allocator.gateway.rooms import Rooms, _says_that_it_serves
from monarch_nb.allocator.gateway.service import ANSWERING_STREAMS, CALLS, OWN, STREAMS, GatewayService
from monarch_nb.allocator.serving.guard import SERVICE
from monarch_nb.allocator.serving.service import AllocatorService
from monarch_nb.allocator.state.rights import Right
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import MeshNotFound, NodeUnreachable, ReservationNotFound, WardenRefused
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.callers import Caller, caller_of, told_to_room
from monarch_nb.trust.identity import USER
from monarch_nb.warden.command import TOLD
from monarch_nb.warden.command import parse as parse_warden

TIMEOUT_S = 60.0


def test_each_method_is_answered_or_passed_on_and_none_falls_through() -> None:
    parts = [OWN, CALLS, ANSWERING_STREAMS, STREAMS]
    assert sorted(name for part in parts for name in part) == sorted(method.name for method in SERVICE.methods)
    for name in frozenset().union(*parts[1:]):
        assert getattr(GatewayService, name) is not getattr(AllocatorService, name), name


@pytest.mark.parametrize(("in_room_s", "said_s"), [(3.0, 3.0), (50.0, 20.0)])
async def test_who_asks_whether_a_reservation_is_idle_hears_of_its_room(in_room_s: float, said_s: float) -> None:
    node = Mock(**{"leases.expiry.idle_for_s.return_value": 20.0})
    service = GatewayService(Mock(idle_s=AsyncMock(return_value=in_room_s)), node, Mock())
    reply: pb.IdleReply = await service.Idle(pb.IdleRequest(reservation_id="r"), Mock())
    assert reply.idle_for_s == said_s


def _call(**facts: Any) -> Mock:
    return Mock(peer=lambda: "unix:", **facts)


def test_a_room_believes_its_gateway_who_calls() -> None:
    alice = Caller("alice", USER, node="host1")
    assert caller_of(_call(invocation_metadata=lambda: told_to_room(alice))) == alice


def test_who_calls_a_room_without_a_gateway_is_its_own_account() -> None:
    assert caller_of(_call(invocation_metadata=tuple)).local


@pytest.mark.parametrize(("is_room", "leased"), [(True, [5, 7]), (False, [4, 5])])
def test_only_a_room_takes_the_gpus_that_a_request_names(is_room: bool, leased: list[int]) -> None:
    state = NodeState(0, [4, 5, 6, 7], is_room=is_room)
    request = pb.ReserveRequest(reservation_id="r", name="dev", owner="alice", gpus=2, gpu_indices=[7, 5])
    assert state.reserve(request).gpu_indices == leased


@pytest.fixture
def warden() -> Mock:
    """Starts what it is told to, for accounts that are called as their people."""
    return Mock(accounts=lambda names: {name: Mock(account=name, refused="") for name in names}, rooms=list)


@pytest.fixture
def rooms(warden: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """Of a node where alice is about to have a reservation. Their rooms do what they are told."""
    state = NodeState(4)
    state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="alice", procs=1))
    made = Rooms(warden, tmp_path, state, Mock(), Mock(), Mock())
    room = AsyncMock()
    room.call.return_value = pb.ReleaseReply(ranks_ended=1)
    monkeypatch.setattr(made, "room", AsyncMock(return_value=room))
    return made


def asked(rooms: Rooms) -> list[str]:
    """Return what was asked of rooms."""
    return [each.args[0] for each in rooms.room.return_value.call.call_args_list]  # type: ignore[attr-defined]


async def test_amounts_and_gpus_go_to_the_warden_once_and_a_room_leases_without_amounts(
    rooms: Rooms, warden: Mock
) -> None:
    limited = pb.ReserveRequest(reservation_id="r", owner="alice", procs=1, memory_bytes=64 << 30, cpus=0.5)
    rooms._state.reserve(pb.ReserveRequest(reservation_id="free", name="free", owner="alice", procs=1))
    for request in (limited, limited, pb.ReserveRequest(reservation_id="free", owner="alice", procs=1)):
        await rooms.reserve(request, [pb.Gpu(index=2, minor=5), pb.Gpu(index=3, minor=0)])
        _, given, *_ = rooms.room.return_value.call.call_args.args  # type: ignore[attr-defined]
        assert (given.reservation_id, given.memory_bytes, given.cpus) == (request.reservation_id, 0, 0.0)
        assert given.gpu_indices == [2, 3]
    groups = [each.args for each in warden.reserve_group.call_args_list]
    assert groups == [("alice", "r", 64 << 30, 0.5, [5, 0]), ("alice", "free", None, None, [5, 0])]


async def test_what_is_released_while_its_room_opens_is_begun_nowhere(rooms: Rooms, warden: Mock) -> None:
    async def opened(account: str) -> Mock:
        rooms._begin.side_effect = ReservationNotFound("it was released")  # type: ignore[attr-defined]
        return Mock()

    rooms.room.side_effect = opened  # type: ignore[attr-defined]
    with pytest.raises(ReservationNotFound, match="it was released"):
        await rooms.reserve(pb.ReserveRequest(reservation_id="r", owner="alice", procs=1), [])
    assert not warden.reserve_group.called
    assert asked(rooms) == []


async def test_what_is_released_while_it_begins_ends_after_that(rooms: Rooms, warden: Mock) -> None:
    begins, goes_on = threading.Event(), threading.Event()

    def reserve_group(*_: object) -> None:
        begins.set()
        goes_on.wait(TIMEOUT_S)

    warden.reserve_group.side_effect = reserve_group
    beginning = asyncio.create_task(rooms.reserve(pb.ReserveRequest(reservation_id="r", owner="alice", procs=1), []))
    await asyncio.to_thread(begins.wait, TIMEOUT_S)
    ending = asyncio.create_task(rooms.end("r"))
    for _ in range(10):  # it comes as far as it can
        await asyncio.sleep(0)
    goes_on.set()
    await beginning
    assert await ending == 1
    assert asked(rooms) == ["Reserve", "Release"]
    warden.end_group.assert_called_once_with("alice", "r")


async def test_a_room_that_is_needed_while_it_is_closed_opens_after_that(
    rooms: Rooms, warden: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, is_closed, done = threading.Event(), threading.Event(), list[str]()

    def close_room(account: str) -> None:
        closes.set()
        is_closed.wait(TIMEOUT_S)
        done.append("closed")

    def room(account: str) -> Mock:
        done.append("found")
        raise WardenRefused("there is none")

    monkeypatch.undo()
    warden.close_room, warden.room = close_room, room
    warden.open_room.side_effect = WardenRefused("no more than 20")
    rooms._state.release("r")
    closing = asyncio.create_task(rooms._close_unused("alice"))
    await asyncio.to_thread(closes.wait, TIMEOUT_S)
    opening = asyncio.create_task(rooms.room("alice"))
    for _ in range(10):  # it comes as far as it can
        await asyncio.sleep(0)
    is_closed.set()
    await closing
    with pytest.raises(WardenRefused, match="no more than 20"):
        await opening
    assert done == ["closed", "found"]


async def test_the_end_of_a_room_is_not_that_of_the_next(rooms: Rooms) -> None:
    rooms._go_on = AsyncMock()  # type: ignore[method-assign]
    for ended, left in ((Mock(account="alice"), 1), (following := Mock(account="alice"), 0)):
        rooms._rooms["alice"] = asyncio.create_task(AsyncMock(return_value=following)())
        await rooms._rooms["alice"]
        pidfd = os.pidfd_open(os.getpid())
        rooms._has_ended(ended, pidfd)
        assert len(rooms._rooms) == left


async def test_an_unused_room_that_does_not_end_is_closed_again_later(rooms: Rooms, warden: Mock) -> None:
    rooms._state.release("r")
    for refused, left in ((WardenRefused("do not end", is_unfinished=True), ["alice"]), (None, [])):
        warden.close_room.side_effect = refused
        await rooms._close_unused("alice")
        assert [*rooms._unused] == left
    assert warden.close_room.call_args_list == [call("alice")] * 2


async def test_a_new_gateway_closes_the_rooms_of_those_who_hold_nothing_later(rooms: Rooms, warden: Mock) -> None:
    warden.rooms = lambda: ["alice", "bob"]
    await rooms.resume()
    assert [*rooms._unused] == ["bob"]
    await rooms._close_unused("bob")
    warden.close_room.assert_called_once_with("bob")


async def test_slots_are_nobodys_before_the_processes_on_them_have_ended(
    rooms: Rooms, warden: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_nb.allocator.gateway.rooms.AGAIN_S", 0.0)
    await rooms.reserve(pb.ReserveRequest(reservation_id="r", owner="alice", procs=1), [])
    warden.end_group.side_effect = [WardenRefused("processes do not end", is_unfinished=True)] * 3 + [0]
    assert await rooms.end("r") == 1
    assert warden.end_group.call_count == 4
    assert not warden.close_room.called
    assert await rooms.end("r") == 0
    assert asked(rooms) == ["Reserve", "Release"]


@pytest.mark.parametrize(("deaths", "closed"), [(0, []), (None, [call("alice")])])
async def test_what_a_room_does_not_end_and_no_cgroup_does_ends_with_the_room(
    rooms: Rooms, warden: Mock, deaths: int | None, closed: list[Any]
) -> None:
    await rooms.reserve(pb.ReserveRequest(reservation_id="r", owner="alice", procs=1), [])
    rooms.room.return_value.call.side_effect = NodeUnreachable("stopped")  # type: ignore[attr-defined]
    warden.end_group.return_value = deaths
    assert await rooms.end("r") == 0
    assert warden.close_room.call_args_list == closed


async def test_a_reservation_ends_where_it_began_whatever_users_toml_says_by_now(rooms: Rooms, warden: Mock) -> None:
    rooms._state.lease("r").account = "class"  # as an earlier gateway has written down
    warden.accounts = Mock(side_effect=WardenRefused("users.toml has no account for alice"))
    await rooms.resume()
    assert rooms.is_in(Mock(account="class"), "r")
    assert not rooms.is_in(Mock(account="alice"), "r")
    assert await rooms.of_person("alice") is await rooms.of_holder("alice") is await rooms.of_reservation("r")
    assert await rooms.end("r") == 1
    assert {each.args for each in rooms.room.call_args_list} == {("class",)}  # type: ignore[attr-defined]
    warden.end_group.assert_called_once_with("class", "r")
    assert not warden.accounts.called


async def test_a_room_that_does_not_answer_keeps_a_new_gateway_from_nobody_else(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_nb.allocator.gateway.rooms.RESUME_S", 0.05)
    rooms._state.reserve(pb.ReserveRequest(reservation_id="his", name="dev", owner="bob", procs=1))
    answers, found = asyncio.Event(), set[str]()

    async def opened(account: str) -> None:
        if account == "alice":
            await answers.wait()
        found.add(account)

    rooms.room.side_effect = opened  # type: ignore[attr-defined]
    async with asyncio.timeout(TIMEOUT_S):
        await rooms.resume()
    access = GatewayAccess(rooms.meshes, rooms.resuming, "host1", "host1:7878", rooms._state, Mock(), None)
    assert found == {"bob"}
    with pytest.raises(NodeUnreachable, match="has not said yet which meshes"):
        await rooms.of_mesh("m")
    with pytest.raises(NodeUnreachable, match="has not said yet which meshes"):
        access.need_mesh(Caller("alice", USER), "m", Right.RUN, "run cells")
    answers.set()
    await asyncio.gather(*rooms._tasks)
    with pytest.raises(MeshNotFound):
        await rooms.of_mesh("m")
    with pytest.raises(MeshNotFound):
        access.need_mesh(Caller("alice", USER), "m", Right.RUN, "run cells")


LISTEN = ["--listen", "127.0.0.1:7878", "--certificate", "node.pem"]


@pytest.mark.parametrize(
    ("uid", "words", "said"),
    [
        (1000, LISTEN, "run it as root"),
        (0, [], "say --listen and --certificate"),
        (0, [*LISTEN, "--temporary", "5m"], "does not go with --temporary"),
    ],
)
def test_as_users_is_refused_where_it_can_not_work(
    uid: int, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("os.execv", Mock(side_effect=AssertionError))
    assert main(["--as-users", *words]) == 1
    assert said in capsys.readouterr().err


def test_the_warden_starts_the_same_command_line_as_the_gateway_and_rooms_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execv = Mock(side_effect=SystemExit)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.execv", execv)
    try:
        with pytest.raises(SystemExit):
            main(["--as-users", *LISTEN, "--procs", "4", "--record", "/var/log/{odd}.jsonl"])
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= TOLD, "it is told to end when it can"
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
    words = parse_warden(execv.call_args.args[1][4:])
    gateway = [word.format(descriptor=3, directory="/d") for word in shlex.split(words.gateway)]
    room = [word.format(account="alice", directory="/d", ready=3) for word in shlex.split(words.room)]
    as_gateway, as_room = parse(gateway[4:]), parse(room[4:])
    assert (as_gateway.warden_fd, as_gateway.procs, as_gateway.as_users) == (3, 4, False)
    assert str(as_gateway.record) == "/var/log/{odd}.jsonl"
    assert (as_room.room, as_room.procs, as_room.advertise, as_room.certificate) == ("alice", 4, "127.0.0.1:7878", None)


@pytest.mark.parametrize(
    ("line", "serves"),
    [
        (b'{"serving": "host1:7878"}', True),
        (b"", False),
        (b"[" * 4096, False),
        (b'{"template_error": ""}', False),
        (b"7", False),
    ],
)
def test_what_a_room_says_at_its_start_is_not_believed_blindly(line: bytes, serves: bool) -> None:
    assert _says_that_it_serves(line) is serves
