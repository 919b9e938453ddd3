"""What a gateway that has been taken over, or an account with a room, could try. Nothing gets through."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.live import eventually
from integration.night.warden.wardens import TIMEOUT_S, RealWarden, finished, gone, uid
from monarch_nb.errors import WardenRefused
from monarch_nb.warden.starting import fork, read_answer

MALFORMED = 20_000
FLIPS, STEPS = 300, 200
Start = Callable[..., RealWarden]


def listener(connection: socket.socket) -> int:
    """Return the uid of who listens at the other end."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def connected(warden: RealWarden, account: str) -> int | None:
    """Return whose room the warden connects to; None when it refuses."""
    try:
        room = warden.client.room(account)
    except WardenRefused:
        return None
    os.close(room.pidfd)
    with room.connection:
        return listener(room.connection)


def test_links_lead_nowhere(start: Start, people: list[str], tmp_path: Path) -> None:
    alice, bob, *_ = people
    warden = start()
    rooms = warden.directory / "state" / "rooms"
    warden.open(alice)
    warden.open(bob)
    assert connected(warden, alice) == uid(alice)
    hers, his = rooms / alice, rooms / bob
    for made in (
        "pass",
        f"os.symlink({str(his / 's/allocator')!r}, 's/gateway')",
        "os.unlink('s/gateway'); os.symlink('allocator', 's/gateway')",
    ):
        subprocess.run(["/usr/bin/python3", "-c", f"import os; {made}"], user=alice, cwd=hers, check=True)
        with pytest.raises(WardenRefused):
            warden.client.way_out(alice)
    for made in (
        f"os.rename('s', 't'); os.symlink({str(his / 's')!r}, 's')",
        "os.unlink('s'); os.symlink('t', 's')",
        f"os.unlink('s'); os.mkdir('s'); os.symlink({str(his / 's/allocator')!r}, 's/allocator')",
        "os.unlink('s/allocator'); os.symlink('/dev/log', 's/allocator')",
        "os.unlink('s/allocator'); os.symlink('../t/allocator', 's/allocator')",
        "os.unlink('s/allocator'); os.mkfifo('s/allocator')",
        "os.unlink('s/allocator'); os.mkdir('s/allocator')",
        "os.rmdir('s/allocator'); open('s/allocator', 'w')",
    ):
        subprocess.run(["/usr/bin/python3", "-c", f"import os; {made}"], user=alice, cwd=hers, check=True)
        assert connected(warden, alice) is None, made
    for denied in (
        f"os.link({str(his / 's/allocator')!r}, 'x')",
        f"os.listdir({str(his)!r})",
        f"os.rename({str(hers)!r}, {str(rooms / 'x')!r})",
        f"os.mkdir({str(rooms / 'x')!r})",
        f"os.rename({str(hers)!r}, {str(his)!r})",
        f"open({str(rooms.parent / 'rooms.json')!r})",
        f"os.listdir({str(rooms.parent / 'gateway')!r})",
    ):
        done = subprocess.run(["/usr/bin/python3", "-c", f"import os; {denied}"], user=alice, capture_output=True)
        assert b"PermissionError" in done.stderr, denied


def test_races_lead_nowhere(start: Start, people: list[str]) -> None:
    alice, bob, *_ = people
    warden = start()
    rooms = warden.directory / "state" / "rooms"
    warden.open(alice)
    warden.open(bob)
    flips = f"""
import os
os.symlink({str(rooms / bob / "s")!r}, "link")
while True:
    os.rename("s", "own"); os.rename("link", "s"); os.rename("s", "link"); os.rename("own", "s")
"""
    with subprocess.Popen(["/usr/bin/python3", "-c", flips], user=alice, cwd=rooms / alice) as flipping:
        reached = [connected(warden, alice) for _ in range(FLIPS)]
        flipping.kill()
    assert uid(alice) in reached
    assert uid(bob) not in reached


def test_a_log_that_is_a_link_is_not_followed(start: Start, people: list[str]) -> None:
    alice, bob, *_ = people
    warden = start()
    warden.open(alice)
    finished(warden.client.close_room, alice)
    log = warden.directory / "state" / "rooms" / alice / "room.log"
    log.unlink()
    log.symlink_to(f"/home/{alice}/.bashrc")
    with pytest.raises(WardenRefused, match="symbolic links"):
        warden.client.open_room(alice)
    assert warden.client.open_room(bob).pid
    room = log.parent
    log.unlink()
    os.chown(room, uid(bob), -1)
    with pytest.raises(WardenRefused, match="is another user's"):
        warden.client.open_room(alice)


def test_what_an_account_has_mounted_is_not_entered(start: Start, people: list[str]) -> None:
    alice = people[0]
    warden = start()
    warden.open(alice)
    home = warden.directory / "state" / "rooms" / alice
    listens = "server = socket.socket(socket.AF_UNIX); server.bind('allocator'); server.listen(); input()"
    for mounted in (home / "s", home):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={uid(alice)},mode=700", "none", mounted], check=True)
        (home / "s").mkdir(exist_ok=True)
        os.chown(home / "s", uid(alice), -1)
        command = ["/usr/bin/python3", "-c", f"import socket; {listens}"]
        with subprocess.Popen(command, user=alice, cwd=home / "s", stdin=subprocess.PIPE) as listening:
            try:
                eventually((home / "s/allocator").exists)
                assert connected(warden, alice) is None
            finally:
                listening.communicate(b"\n")
                subprocess.run(["umount", mounted], check=True)
    assert connected(warden, alice) == uid(alice)


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (signal.pause, {"refused": "the account's process did not start within 0 s: its home hangs, or somebody has"}),
        (lambda: os.execv("/bin/true", ["true"]), {}),
        (lambda: os.stat("/none"), {"refused": "[Errno 2] No such file or directory: '/none'"}),
    ],
)
def test_who_stops_their_own_start_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, does: Callable[[], object], told: dict[str, str]
) -> None:
    monkeypatch.setattr("monarch_nb.warden.starting.OWN_S", 0.2 if does is signal.pause else TIMEOUT_S)
    monkeypatch.setattr("monarch_nb.warden.starting.ANSWERS_S", TIMEOUT_S)
    pid, answers = fork(lambda tell: (tell({}), does()))
    found = read_answer(answers)
    os.close(answers)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert found.keys() == told.keys()
    assert found.get("refused", "").startswith(told.get("refused", ""))


def test_malformed_and_reordered_requests_get_nothing(start: Start, people: list[str]) -> None:
    alice = people[0]
    warden = start()
    opened = warden.open(alice)
    raw = socket.socket(fileno=os.dup(warden.client._connection.fileno()))
    random_ = random.Random(25)
    before = (
        children(warden.process.pid),
        tree(warden.directory / "state"),
        os.listdir(f"/proc/{warden.process.pid}/fd"),
    )
    for number in range(MALFORMED):
        sent = malformed(random_, alice)
        raw.send(sent)
        told = json.loads(raw.recv(1 << 16))
        assert "refused" in told, (number, sent)
    with open("/dev/null", "rb") as file:
        socket.send_fds(raw, [b'{"number":1,"do":"room","account":"%s"}' % alice.encode()], [file.fileno()])
    assert "refused" in json.loads(raw.recv(1 << 16))
    raw.close()
    after = (
        children(warden.process.pid),
        tree(warden.directory / "state"),
        os.listdir(f"/proc/{warden.process.pid}/fd"),
    )
    assert after == before
    assert not gone(opened.pid)
    assert connected(warden, alice) == uid(alice)
    assert "Traceback" not in warden.said()


def test_requests_in_any_order_do_what_they_say(start: Start, people: list[str], cgroup: Path) -> None:
    warden, random_ = start(cgroup, users="rooms = 2\n"), random.Random(25)
    rooms: dict[str, set[str]] = {}
    for step in range(STEPS):
        account, reservation = random_.choice(people[:3]), random_.choice(["1" * 32, "2" * 32])
        do = random_.choice(["open_room", "room", "reserve_group", "end_group", "close_room"])
        groups = rooms.get(account)
        may = {
            "open_room": groups is None and len(rooms) < 2,
            "room": groups is not None,
            "reserve_group": groups is not None and reservation not in groups,
            "end_group": groups is not None and reservation in groups,
            "close_room": groups is not None,
        }[do]
        try:
            if do == "open_room":
                os.close(warden.open(account).pidfd)
                rooms[account] = set()
            elif do == "room":
                assert connected(warden, account) == (uid(account) if may else None)
                continue
            elif do == "reserve_group":
                warden.client.reserve_group(account, reservation)
                rooms[account].add(reservation)
            elif do == "end_group":
                finished(warden.client.end_group, account, reservation)
                rooms[account].remove(reservation)
            else:
                finished(warden.client.close_room, account)
                del rooms[account]
        except WardenRefused:
            assert not may, (step, do)
        else:
            assert may, (step, do)
        there = {room.name: {group.name for group in room.glob("*/")} - {"own"} for room in cgroup.glob("rooms/*/")}
        assert there == rooms, (step, do)


def children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def tree(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_uid, path.lstat().st_mode) for path in directory.rglob("*"))


NAMES: list[Any] = [
    "..", "../root", "root\n", "a\0b", "ä", "", "A" * 33, "/etc", ".", "-rf", "root", "nobody", 0, None, True, ["root"],
    {"a": 1}, 1.5, "x" * 5000, "mnb-none",
]  # fmt: skip
NO_MINORS: list[Any] = [0, {}, *([0, each] for each in (-1, 248, "0", True, 0.0, [0], {}, None))]
AMOUNTS: list[Any] = [-1, 0, 1, 1 << 60, 1e308, "64G", None, True, [], 0.0, "max"]


def malformed(random_: random.Random, alice: str) -> bytes:
    """Return a request that is none, or one that has no right: of others' accounts, unknown groups, open rooms."""
    account: Any = random_.choice([*NAMES, alice])
    request: dict[str, Any] = {"number": random_.choice([1, 0, 1 << 52]), "do": "", "account": account}
    match random_.randrange(9):
        case 0:
            return random_.randbytes(random_.choice([1, 10, 4096, 4097, 20_000]))
        case 1:
            request |= {"do": "open_room", "account": random_.choice([*NAMES, alice])}
        case 2:
            request |= {"do": "end_group", "reservation": f"{random_.getrandbits(128):032x}"}
        case 3:
            request |= {"do": "reserve_group", "reservation": random_.choice([*NAMES, "1" * 32])}
            kinds = {"memory_bytes": [1 << 30, *AMOUNTS], "cpus": ["1"], "gpu_minors": NO_MINORS}
            key = random_.choice([*kinds])
            request[key] = random_.choice(kinds[key])
        case 4:
            request |= {"do": random_.choice(["room", "close_room"]), "account": random_.choice(NAMES)}
        case 5:
            extra = random_.choice(["path", "uid", "signal", "environment", "command", "limits", "Account", "number "])
            request |= {"do": random_.choice(["room", "open_room", "close_room"]), "account": alice, extra: 0}
        case 6:
            request = {"number": 1, "do": "accounts", "names": random_.choice([[], ["a"] * 101, "root", ["../a"], [1]])}
        case 7:
            whole = json.dumps({"number": 1, "do": "close_room", "account": alice})
            cut = random_.randrange(1, len(whole))
            return random_.choice([whole[:cut], whole[cut:], whole + "x", whole * 2, f"[{whole}]", "[" * 4000]).encode()
        case _:
            twice = f'{{"number": 1, "do": "close_room", "account": "{alice}", "account": "{alice}"}}'
            coding = random_.choice(["utf-8", "utf-16", "utf-32"])
            no_request = random_.choice([twice, '{"number": NaN}', '{"number": true, "do": "room"}', "null", "\x00"])
            return str(no_request).encode(coding)
    return json.dumps(request, ensure_ascii=random_.random() < 0.5).encode(errors="replace")


def test_who_has_no_account_that_may_gets_no_room(start: Start, people: list[str]) -> None:
    alice, bob, _, gate = people
    warden = start(
        users=f'allow = ["{alice}", "@users"]\nrooms = 1\n[accounts]\nboss = "root"\nann = "{alice}"\n"*" = "same"\n'
    )
    told = warden.client.accounts(["ann", alice, bob, "boss", "nobody", "mnb-none", "Ann@lab", gate])
    assert {name: person.account for name, person in told.items() if person.account} == {"ann": alice, alice: alice}
    for name, why in {
        bob: "`allow` in users.toml names neither",
        "boss": "is the system's",
        "nobody": "is the system's",
        "mnb-none": "there is no account mnb-none",
        "Ann@lab": "users.toml has no account for Ann@lab",
        gate: "the gateway's own account",
    }.items():
        assert why in told[name].refused
    for account in (bob, gate):
        with pytest.raises(WardenRefused):
            warden.client.open_room(account)
    subprocess.run(["usermod", "--append", "--groups", "users", bob], check=True)
    assert warden.client.accounts([bob])[bob].account == bob
    warden.open(alice)
    with pytest.raises(WardenRefused, match="1 accounts have a room already"):
        warden.client.open_room(bob)
    users = warden.directory / "users.toml"
    users.write_text(f'allow = ["{bob}"\n')
    with pytest.raises(WardenRefused, match="line 2: Unclosed array: until it is in order, nobody may"):
        warden.client.accounts([bob])
    users.write_text("")
    users.chmod(stat.S_IRUSR | stat.S_IWGRP)
    with pytest.raises(WardenRefused, match="others than root may write it"):
        warden.client.open_room(bob)
    assert connected(warden, alice) == uid(alice)
    assert finished(warden.client.close_room, alice) is None


def test_an_account_that_was_closed_gets_no_room(start: Start, people: list[str]) -> None:
    carol = people[2]
    warden = start()
    for change, back, why in (
        (["--expiredate", "2020-01-01"], ["--expiredate", ""], "has expired"),
        (["--shell", "/usr/sbin/nologin"], ["--shell", "/bin/bash"], "for nobody to log in"),
        (["--password", "!$6$salt$x"], ["--password", "!"], "is locked"),
    ):
        subprocess.run(["usermod", *change, carol], check=True)
        with pytest.raises(WardenRefused, match=why):
            warden.client.open_room(carol)
        subprocess.run(["usermod", *back, carol], check=True)
    assert warden.client.accounts([carol])[carol].account == carol


def test_a_signal_to_a_room_that_starts_does_not_reach_the_warden() -> None:
    """An account may signal its process before that is another program: it is still a copy of the warden then."""
    code = """
import os, select, signal, socket
from monarch_nb.warden.starting import in_child
woken, wakes = socket.socketpair()
wakes.setblocking(False)
signal.set_wakeup_fd(wakes.fileno())
signal.signal(signal.SIGTERM, lambda *_: None)
print(in_child(lambda: os.kill(os.getpid(), signal.SIGTERM) or {"lives": True}))
print(select.select([woken], [], [], 0)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{'refused': 'the process that was to look has ended'}\n[]\n"


def test_a_table_that_was_cut_is_none(start: Start, people: list[str], cgroup: Path) -> None:
    alice = people[0]
    warden = start(cgroup)
    opened = warden.open(alice)
    warden.stop(signal.SIGHUP)
    (warden.directory / "state" / "rooms.json").write_text('{"boot_id": ')
    warden.gateway.close()
    warden.start()
    assert gone(opened.pid)
    warden.open(alice)
