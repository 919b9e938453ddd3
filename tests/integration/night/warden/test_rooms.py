"""A room is its account, from its first line on, and all that it started ends with it."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.live import eventually
from integration.night.warden.wardens import (
    TIMEOUT_S,
    RealWarden,
    finished,
    gone,
    skip_unless_possible,
    uid,
    wait_for_end,
)
from monarch_nb.errors import WardenGone, WardenRefused
from monarch_nb.warden import groups
from monarch_nb.warden.command import TOLD
from monarch_nb.warden.requests import Refused, Unfinished
from monarch_nb.warden.rooms import Room, Rooms

LISTEN = """
import os, socket, sys
sys.offered = socket.socket(socket.AF_UNIX)
sys.offered.bind(os.environ["MONARCH_NB_HOME"] + "/s/gateway")
sys.offered.listen()
"""
RESERVATION, OTHER = "1" * 32, "2" * 32
DAEMON = """
import os, time
reads, writes = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if group:
            open(group + "/cgroup.procs", "w").write("0")
        os.write(writes, str(os.getpid()).encode())
        for number in range(3, 100):
            try:
                os.close(number)
            except OSError:
                pass
        time.sleep(1000)
    os._exit(0)
os.wait()
answer = int(os.read(reads, 20))
"""
Start = Callable[..., RealWarden]


def daemon(warden: RealWarden, account: str, group: str = "") -> int:
    """Start a daemon in a room that has left its parents and its session; return its pid."""
    return int(warden.run(account, f"group = {group!r}\n{DAEMON}"))


def descriptors(warden: RealWarden) -> list[str]:
    """Return what the warden has open between two requests."""
    warden.client.accounts(["root"])
    return sorted(os.listdir(f"/proc/{warden.process.pid}/fd"))


@pytest.mark.quick
def test_a_room_is_its_account(start: Start, people: list[str], cgroup: Path) -> None:
    alice = people[0]
    subprocess.run(["usermod", "--append", "--groups", "users", alice], check=True)
    warden = start(cgroup)
    os.environ["SECRET_OF_ROOT"] = "1"
    opened = warden.open(alice)
    told = warden.run(
        alice,
        """
import os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
answer = {
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "environment": dict(os.environ),
    "directory": os.getcwd(), "session": os.getsid(0) == os.getpid(), "capabilities": status["CapEff"].strip(),
    "group": [line.strip() for line in open("/proc/self/cgroup") if line.startswith("0::")], **at_start,
    "log": os.fstat(2).st_uid, "signals": status["SigBlk"].strip(),
}""",
    )
    account, users = uid(alice), 100
    home = warden.directory / "state" / "rooms" / alice
    assert told["uids"] == told["gids"] == [account] * 3
    assert sorted(told["groups"]) == sorted([account, users])
    assert told["environment"] == {
        "HOME": f"/home/{alice}",
        "USER": alice,
        "LOGNAME": alice,
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "MONARCH_NB_HOME": str(home),
        "MONARCH_NB_CGROUP": str(cgroup / "rooms" / alice),
        "MONARCH_NB_FENCED": "gpus",
    }
    assert told["directory"] == f"/home/{alice}"
    assert told["session"]
    assert told["umask"] == 0o077
    assert told["descriptors"] == [0, 1, 2, 3]
    assert int(told["capabilities"], 16) == int(told["signals"], 16) == 0
    assert told["group"] == [f"0::/{cgroup.name}/rooms/{alice}/own"]
    assert told["log"] == account
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (account, 0o700)
    assert (home.parent.stat().st_uid, home.parent.stat().st_mode & 0o777) == (0, 0o711)
    assert Path(f"/proc/{opened.pid}").stat().st_uid == account


@pytest.mark.parametrize("with_cgroups", [True, False])
def test_daemons_end_with_their_room(start: Start, people: list[str], cgroup: Path, with_cgroups: bool) -> None:
    alice, bob, *_ = people
    warden = start(cgroup if with_cgroups else None)
    warden.open(alice)
    warden.open(bob)
    hers, his = daemon(warden, alice), daemon(warden, bob)
    finished(warden.client.close_room, alice)
    assert gone(hers)
    assert not gone(his)
    with pytest.raises(WardenRefused, match="has no room"):
        warden.client.room(alice)
    assert warden.stop() == 0
    assert gone(his)


def test_what_forks_faster_than_it_is_ended_holds_the_warden_up_for_a_bounded_time(
    people: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in for a daemon: each time that somebody looks, one more process is there."""
    account, found, started = uid(people[0]), groups._descendants, list[subprocess.Popen[bytes]]()

    def one_more(*of_room: int) -> dict[int, int]:
        assert len(started) < 1000, "it goes on for ever"
        started.append(subprocess.Popen(["sleep", "1000"], user=people[0]))
        return found(*of_room)

    monkeypatch.setattr(groups, "_descendants", one_more)
    with pytest.raises(Refused, match="faster than they are ended"):
        groups.end_tree(account, 0)
    started.pop().kill()
    assert [process.wait() for process in started] == [-signal.SIGKILL] * len(started)


def test_what_does_not_end_at_once_keeps_no_other_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_possible()
    asked: list[int] = []

    def end_tree(uid: int, leader: int) -> None:
        asked.append(uid)
        if uid == 1001 and asked.count(uid) < 3:
            raise Unfinished("processes of uid 1001 do not end: they wait in the kernel, for a disk or a GPU")

    monkeypatch.setattr(groups, "end_tree", end_tree)
    top = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    rooms = Rooms(top, tmp_path, groups.Groups(None), [])
    rooms._rooms = {name: Room(name, uid, 0, 0) for name, uid in (("alice", 1001), ("bob", 1002))}
    rooms.close_all()
    os.close(top)
    assert asked == [1001, 1002, 1001, 1001]
    assert rooms._rooms == {}


def test_a_reservation_ends_alone(start: Start, people: list[str], cgroup: Path) -> None:
    alice, bob, *_ = people
    warden = start(cgroup)
    warden.open(alice)
    warden.open(bob)
    group, other = (warden.client.reserve_group(alice, each) for each in (RESERVATION, OTHER))
    first, second, own = (daemon(warden, alice, each) for each in (group, other, ""))
    for elsewhere in (str(cgroup), str(cgroup / "rooms"), str(cgroup / "rooms" / bob / "own"), str(cgroup.parent)):
        moved = f"open({elsewhere!r} + '/cgroup.procs', 'w').write('0')"
        assert warden.run(alice, moved) == {"error": "PermissionError"}
    assert warden.run(alice, f"open({group!r} + '/pids.max', 'w').write('1')") == {"error": "PermissionError"}
    assert warden.run(alice, f"import os; os.mkdir({group!r} + '/own')") == {"error": "PermissionError"}
    assert finished(warden.client.end_group, alice, RESERVATION) == 0
    assert gone(first)
    assert not gone(second)
    assert not gone(own)
    assert not Path(group).exists()
    with pytest.raises(WardenRefused, match="no group"):
        warden.client.end_group(alice, RESERVATION)
    with pytest.raises(WardenRefused, match="no group"):
        warden.client.end_group(bob, OTHER)
    with pytest.raises(WardenRefused, match="can not limit memory or CPUs"):
        warden.client.reserve_group(alice, RESERVATION, memory_bytes=1 << 30)
    finished(warden.client.close_room, alice)
    assert gone(second)
    assert gone(own)


OPENS = """
import errno, os
if group:
    open(group + "/cgroup.procs", "w").write("0")
answer = {}
for name in sorted(os.listdir(directory)):
    try:
        os.open(os.path.join(directory, name), os.O_RDWR)
    except OSError as error:
        answer[name] = errno.errorcode[error.errno]
open("/dev/null").close()
"""


def test_a_reservation_opens_no_gpu_but_its_own(start: Start, people: list[str], cgroup: Path) -> None:
    """The device nodes are real, and have no driver here: ENXIO says that the kernel would have asked it."""
    alice = people[0]
    warden = start(cgroup)
    if "can not be fenced" in warden.said():
        pytest.skip("this kernel loads no programs that fence devices")
    nodes = warden.directory / "nodes"
    nodes.mkdir(mode=0o755)
    for minor in (0, 1, 7, 255):
        os.mknod(nodes / str(minor), stat.S_IFCHR | 0o666, os.makedev(195, minor))
        (nodes / str(minor)).chmod(0o666)
    warden.open(alice)
    both = warden.client.reserve_group(alice, RESERVATION, gpu_minors=[7, 1])
    none = warden.client.reserve_group(alice, OTHER)

    def can_open(group: str) -> set[str]:
        told = warden.run(alice, f"group, directory = {group!r}, {str(nodes)!r}\n{OPENS}")
        assert set(told.values()) <= {"EPERM", "ENXIO"}, told
        return {name for name, error in told.items() if error == "ENXIO"}

    room = str(cgroup / "rooms" / alice)
    groups = (room, both, none, f"{room}/own")  # the next warden adopts what is in the last one
    found = {group: can_open(group) for group in groups}
    assert found == {room: {"255"}, both: {"1", "7", "255"}, none: {"255"}, f"{room}/own": {"255"}}
    assert warden.stop(signal.SIGKILL) == -signal.SIGKILL
    warden.gateway.close()
    warden.start()
    assert {group: can_open(group) for group in found} == found
    with pytest.raises(WardenRefused, match="has a gpu_minors that can not be one"):
        warden.client.reserve_group(alice, "3" * 32, gpu_minors=[255])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_next_warden_adopts_rooms(start: Start, people: list[str], cgroup: Path, number: int) -> None:
    alice, bob, *_ = people
    warden = start(cgroup)
    opened = warden.open(alice)
    group = warden.client.reserve_group(alice, RESERVATION)
    rank = daemon(warden, alice, group)
    ended = warden.open(bob)
    os.kill(ended.pid, signal.SIGKILL)
    wait_for_end(ended.pidfd)
    assert warden.stop(number) == (75 if number == signal.SIGHUP else -number)
    with pytest.raises(WardenGone, match="the warden has ended"):
        warden.client.room(alice)
    warden.gateway.close()
    warden.start()
    assert warden.client.rooms() == [alice, bob]
    room = warden.client.room(alice)
    room.connection.close()
    assert room.pid == opened.pid
    assert warden.run(alice, "import os; answer = os.getpid()") == opened.pid
    with pytest.raises(WardenRefused, match="has a room already"):
        warden.client.open_room(alice)
    with pytest.raises(WardenRefused, match="has no room"):
        warden.client.room(bob)
    os.kill(opened.pid, signal.SIGKILL)
    wait_for_end(room.pidfd)
    with pytest.raises(WardenRefused, match="has no room"):
        warden.client.room(alice)
    again = warden.open(alice)
    assert again.pid != opened.pid
    assert not gone(rank)
    assert finished(warden.client.end_group, alice, RESERVATION) == 0
    assert gone(rank)
    assert warden.stop() == 0
    assert gone(again.pid)


def test_a_warden_that_is_told_to_end_at_once_ends_the_rooms_of_the_one_before(
    start: Start, people: list[str], cgroup: Path
) -> None:
    """It gets the signal before its first line, blocked as `allocator --as-users` blocks it."""
    warden = start(cgroup)
    opened = warden.open(people[0])
    warden.stop(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    try:
        warden.launch()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
    assert warden.stop() == 0
    wait_for_end(opened.pidfd)


def test_a_gateway_that_fails_comes_back(start: Start, people: list[str], cgroup: Path) -> None:
    warden = start(cgroup)
    opened = warden.open(people[0])
    unread = b'{"number": 9, "do": "accounts", "names": ["root"]}'
    for left in (b"", unread):  # an answer that nobody reads resets the connection
        if left:
            warden.client._connection.send(left)
            assert select.select([warden.client._connection], [], [], TIMEOUT_S)[0]
        warden.client.close()
        warden.gateway.send(bytes([3]))
        warden.accept()
    assert warden.client.room(people[0]).pid == opened.pid
    warden.gateway.send(bytes([0]))
    assert warden.process.wait(60) == 0
    assert gone(opened.pid)


def test_a_pid_that_is_somebody_elses_is_left_alone(start: Start, people: list[str], cgroup: Path) -> None:
    alice = people[0]
    warden = start(cgroup)
    opened = warden.open(alice)
    warden.stop(signal.SIGHUP)
    os.kill(opened.pid, signal.SIGKILL)
    wait_for_end(opened.pidfd)
    with subprocess.Popen(["sleep", "1000"], user=alice) as other:
        table = warden.directory / "state" / "rooms.json"
        table.write_text(table.read_text().replace(str(opened.pid), str(other.pid)))
        warden.gateway.close()
        warden.start()
        with pytest.raises(WardenRefused, match="has no room"):
            warden.client.room(alice)
        assert warden.stop() == 0
        assert other.poll() is None
        other.kill()


def test_only_the_gateway_has_the_way_out(start: Start, people: list[str]) -> None:
    alice = people[0]
    warden = start()
    warden.open(alice)
    warden.run(alice, LISTEN)
    before = descriptors(warden)
    for _ in range(5):
        warden.client.way_out(alice).close()
    assert descriptors(warden) == before
    of_each = "(connection := sys.offered.accept()[0]).settimeout(60) or connection.recv(1).decode()"
    assert warden.run(alice, f"import sys; answer = [{of_each} for _ in range(5)]") == [""] * 5


def test_rooms_that_can_not_be_written_down_leave_nothing_open(start: Start, people: list[str]) -> None:
    warden = start()
    before = descriptors(warden)
    full = warden.directory / "state" / "rooms.new"
    full.mkdir()
    for account in people[:3]:
        with pytest.raises(WardenRefused, match="its log says why"):
            warden.client.open_room(account)
    eventually(lambda: descriptors(warden) == before)  # when those that were not let go on have ended
    full.rmdir()
    assert warden.open(people[0]).pid


def test_all_rooms_end_on_a_disk_that_takes_nothing(start: Start, people: list[str]) -> None:
    alice, bob, *_ = people
    warden = start()
    rooms = [warden.open(account) for account in (alice, bob)]
    (warden.directory / "state" / "rooms.new").mkdir()  # so the table can not be written
    assert warden.stop() == 0
    assert all(gone(room.pid) for room in rooms)
