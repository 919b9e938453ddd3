"""A real warden with accounts that are made for a test, whose gateway is the test."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from monarch_nb.errors import WardenRefused
from monarch_nb.warden.client import Opened, Warden
from monarch_nb.warden.command import command
from monarch_nb.warden.groups import end_group

PYTHON = "/usr/bin/python3"
"""One that other accounts can execute."""
_MOUNTED = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
UNIFIED = Path(*_MOUNTED[:1] or ["/sys/fs/cgroup/unified"])
"""The root of cgroup v2, if there is one."""
TIMEOUT_S = 60.0
T = TypeVar("T")

GATEWAY = """
import socket, sys
test = socket.socket(socket.AF_UNIX)
test.connect(sys.argv[1])
socket.send_fds(test, [b"hello"], [3])
socket.socket(fileno=3).close()
status = test.recv(1)
sys.exit(status[0] if status else 1)
"""
ROOM = """
import json, os, socket, sys
at_start = {"descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "umask": os.umask(0o077)}
os.makedirs(sys.argv[1] + "/s", exist_ok=True)
path = sys.argv[1] + "/s/allocator"
if os.path.lexists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
os.write(3, b"ready\\n")
def answer_to(line):
    names = {"at_start": at_start}
    try:
        exec(json.loads(line), names)
        return names.get("answer")
    except BaseException as error:
        return {"error": type(error).__name__}
while True:
    client, _ = server.accept()
    with client:
        if line := client.makefile().readline():
            client.sendall(json.dumps(answer_to(line)).encode() + b"\\n")
"""


def skip_unless_possible() -> None:
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root makes accounts, and with useradd: nothing of the warden can be tried here")
    if not os.access(PYTHON, os.X_OK):
        pytest.skip(f"other accounts have no {PYTHON}")


@contextlib.contextmanager
def accounts(*kinds: str) -> Iterator[list[str]]:
    """Make accounts with names that nobody else has, and remove them."""
    names = [f"mnb-test-{os.getpid()}-{kind}" for kind in kinds]
    try:
        for name in names:
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True, capture_output=True)
        yield names
        left = {name: found for name in names if (found := processes_of_user(uid(name)))}
        assert not left, f"processes of accounts are left: {left}"
    finally:
        for name in names:
            subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)


class RealWarden:
    """Starts a warden, and is its gateway.

    Attributes:
        client: the connection of the latest gateway. directory: the warden's. cgroup: None without cgroups.
    """

    def __init__(self, gateway_user: str, *, cgroup: Path | None, users: str = "") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mnb-warden-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.cgroup, self._gateway_user = cgroup, gateway_user
        for name, text in (("gateway.py", GATEWAY), ("room.py", ROOM), ("users.toml", users)):
            (self.directory / name).write_text(text)
            (self.directory / name).chmod(0o644)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.directory / "test"))
        (self.directory / "test").chmod(0o666)
        self._listening.listen()
        self._listening.settimeout(TIMEOUT_S)
        self.log = (self.directory / "log").open("wb")
        self.start()

    def start(self, *, room: Sequence[str] = ()) -> None:
        """Start a warden; an earlier one has ended."""
        self.launch(room)
        self.accept()

    def launch(self, room: Sequence[str] = ()) -> None:
        """Start the process, and wait for nothing."""
        words = command(
            [PYTHON, "-I", str(self.directory / "gateway.py"), str(self.directory / "test")],
            room or [PYTHON, "-I", str(self.directory / "room.py"), "{directory}"],
            [
                *("--users", str(self.directory / "users.toml")),
                *("--directory", str(self.directory / "state"), "--gateway-user", self._gateway_user),
                *(("--cgroup", str(self.cgroup)) if self.cgroup else ("--without-cgroups",)),
            ],
        )
        self.process = subprocess.Popen(
            words,
            umask=0o077,
            stderr=self.log,
            cwd=Path(__file__).parents[4],
            env={**os.environ, "PYTHONPATH": sys.path[0]},
        )

    def accept(self) -> None:
        """Become the gateway that the warden has started."""
        self.gateway, _ = self._listening.accept()
        _, descriptors, _, _ = socket.recv_fds(self.gateway, 16, 1)
        self.client = Warden.inherited(descriptors[0])

    def open(self, account: str) -> Opened:
        """Open a room, and wait until it listens."""
        opened = self.client.open_room(account)
        with open(opened.ready, "rb") as ready:
            assert ready.readline() == b"ready\n", self.said()
        return opened

    def run(self, account: str, code: str) -> Any:
        """Run code in a room, and return what it calls `answer`."""
        room = self.client.room(account)
        os.close(room.pidfd)
        with room.connection, room.connection.makefile("rw") as file:
            file.write(json.dumps(code) + "\n")
            file.flush()
            return json.loads(file.readline())

    def said(self) -> str:
        return (self.directory / "log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the warden by a signal, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None and self.stop() != 0:
            pytest.fail(f"the warden did not end well: {self.said()}")
        self.log.close()
        self._listening.close()
        if self.cgroup is not None:
            for below in ("rooms", "gateway"):
                for group in [*(self.cgroup / below).glob("*/"), self.cgroup / below]:
                    end_group(group, TIMEOUT_S)
            end_group(self.cgroup, TIMEOUT_S)
        shutil.rmtree(self.directory)


def finished(end: Callable[..., T], *arguments: str) -> T:
    """Ask a warden to end something until it has ended, as a gateway does: it waits for half a second each time, and on
    a busy machine what was killed takes longer."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return end(*arguments)
        except WardenRefused as refused:
            if not refused.is_unfinished or time.monotonic() > deadline:
                raise


def uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def processes_of_user(uid: int) -> list[int]:
    """Return the pids of living processes that are an account's."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid and not gone(int(entry.name)):
                found.append(int(entry.name))
    return found


def wait_for_end(pidfd: int) -> None:
    """Wait until a process has ended."""
    assert select.select([pidfd], [], [], TIMEOUT_S)[0]


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True
