"""What a gateway answers by itself, whose words a room believes, and who holds the locks of GPUs."""

from __future__ import annotations

import asyncio
import shlex
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest

from monarch_nb.allocator.__main__ import main, parse
from monarch_nb.allocator.gateway.rooms import Rooms
from monarch_nb.allocator.gateway.service import ANSWERING_STREAMS, CALLS, OWN, STREAMS, GatewayService
from monarch_nb.allocator.serving.guard import SERVICE
from monarch_nb.allocator.serving.service import AllocatorService
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import NodeUnreachable, WardenRefused
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.warden.command import TOLD
from monarch_nb.warden.command import parse as parse_warden

TIMEOUT_S = 60.0


def test_each_method_is_answered_or_passed_on_and_none_falls_through() -> None:
    parts = [OWN, CALLS, ANSWERING_STREAMS, STREAMS]
    assert sorted(name for part in parts for name in part) == sorted(method.name for method in SERVICE.methods)
    for name in frozenset().union(*parts[1:]):
        assert getattr(GatewayService, name) is not getattr(AllocatorService, name), name


def _call(**facts: Any) -> Mock:
    return Mock(peer=lambda: "unix:", **facts)


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
