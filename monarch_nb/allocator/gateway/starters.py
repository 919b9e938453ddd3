"""What starts rooms. On a node that serves people it is the warden (monarch_nb.warden.client), which alone is root."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.cgroups import CAN_NOT_LIMIT
from monarch_nb.config import NodePaths, patience, private_directory
from monarch_nb.errors import PoolError, UsageError
from monarch_nb.proto.state_pb2 import ProcessIdentity
from monarch_nb.warden.client import Opened, Person, Room

CONNECT_S = patience(5.0)
END_S = patience(10.0)


class Starter(Protocol):
    """Opens rooms. Its methods block: call them in a thread. What it refuses it raises, as errors of monarch_nb."""

    def accounts(self, names: Sequence[str]) -> Mapping[str, Person]:
        """Return which accounts people are, by the names in their certificates."""
        ...

    def rooms(self) -> Sequence[str]:
        """Return the accounts that have a room."""
        ...

    def open_room(self, account: str) -> Opened:
        """Start a room. One that was there before, and has ended, finds its ranks again."""
        ...

    def room(self, account: str) -> Room:
        """Return a connection to a room that runs."""
        ...

    def way_out(self, account: str) -> socket.socket:
        """Return a connection on which a room that runs may talk to other nodes."""
        ...

    def reserve_group(
        self,
        account: str,
        reservation: str,
        memory_bytes: int | None,
        cpus: float | None,
        gpu_minors: Sequence[int],
    ) -> object:
        """Keep the processes of a reservation together from now on, within limits: these, else their account's. Of
        GPUs they can open these, where others can be fenced."""
        ...

    def end_group(self, account: str, reservation: str) -> object:
        """End every process of a reservation; return None when nothing keeps them together."""
        ...

    def close_room(self, account: str) -> None:
        """End a room and all its processes."""
        ...


class PlainStarter:
    """Starts rooms as this very user, for tests: everybody has one, and nothing separates them.

    Args:
        directory: in which each room has one of its own.
        command: of a room; `{directory}`, `{ready}` and `{account}` in it are filled in.
    """

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self._directory, self._command = private_directory(directory), command
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def accounts(self, names: Sequence[str]) -> Mapping[str, Person]:
        return {name: Person(name, name) for name in names}

    def rooms(self) -> Sequence[str]:
        return list(self._processes)

    def open_room(self, account: str) -> Opened:
        directory = private_directory(self._directory / account)
        self._end_earlier(account)
        ready, ready_end = os.pipe()
        fill = {"{directory}": str(directory), "{ready}": str(ready_end), "{account}": account}
        try:
            with (directory / "room.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, *(fill.get(word, word) for word in self._command)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[ready_end],
                    start_new_session=True,
                )
        finally:
            os.close(ready_end)
        self._processes[account] = process
        return Opened(process.pid, os.pidfd_open(process.pid), ready)

    def room(self, account: str) -> Room:
        process = self._processes.get(account)
        if process is None or process.poll() is not None:
            raise PoolError(f"no room of {account} runs")
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        connection.connect(str(NodePaths(self._directory / account).allocator_socket))
        return Room(process.pid, os.pidfd_open(process.pid), connection)

    def way_out(self, account: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        connection.connect(str(NodePaths(self._directory / account).gateway_socket))
        return connection

    def reserve_group(
        self,
        account: str,
        reservation: str,
        memory_bytes: int | None,
        cpus: float | None,
        gpu_minors: Sequence[int],
    ) -> object:
        if memory_bytes or cpus:
            raise UsageError(CAN_NOT_LIMIT)
        return None

    def end_group(self, account: str, reservation: str) -> object:
        return None

    def close_room(self, account: str) -> None:
        if process := self._processes.pop(account, None):
            process.terminate()
            process.wait(END_S)

    def _end_earlier(self, account: str) -> None:
        """End what an earlier gateway has started; its ranks go on."""
        try:
            facts = json.loads(NodePaths(self._directory / account).facts.read_text())
            earlier = ProcessIdentity(pid=facts["pid"], start_ticks=facts["start_ticks"], boot_id=facts["boot_id"])
        except (OSError, ValueError, KeyError):
            return
        if processes.is_alive(earlier):
            pidfd = os.pidfd_open(earlier.pid)
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [], END_S)
            os.close(pidfd)
