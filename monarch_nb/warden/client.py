"""The gateway's end: it asks the warden for the few things that need power."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from monarch_nb.errors import WardenGone, WardenRefused

_LARGEST_ANSWER_BYTES = 1 << 17
_MOST_DESCRIPTORS = 2


@dataclass(frozen=True)
class Person:
    """Whose account a name in a certificate means.

    Attributes:
        account: empty when they may have none. refused: a sentence that says why.
    """

    name: str
    account: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Opened:
    """A room that has just been started.

    Attributes:
        pidfd: becomes readable when the process ends. ready: what the process has as its `--ready-fd`. The caller
            closes both.
    """

    pid: int
    pidfd: int
    ready: int


@dataclass(frozen=True)
class Room:
    """A living room.

    Attributes:
        connection: a new one, to its allocator. The caller closes it and the pidfd.
    """

    pid: int
    pidfd: int
    connection: socket.socket


class Warden:
    """Asks for one thing at a time, from any thread.

    Every method raises WardenRefused when the warden does not do it, and WardenGone when there is no warden any more.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock, self._number = connection, threading.Lock(), 0

    @classmethod
    def inherited(cls, descriptor: int) -> Warden:
        """Take over the descriptor that the warden has given to this process."""
        connection = socket.socket(fileno=descriptor)
        connection.set_inheritable(False)
        return cls(connection)

    def close(self) -> None:
        self._connection.close()

    def accounts(self, names: Iterable[str]) -> dict[str, Person]:
        """Return which accounts names in certificates mean; at most 100 at a time."""
        told = self._ask("accounts", names=list(names))[0]["people"]
        return {name: Person(name, **facts) for name, facts in told.items()}

    def open_room(self, account: str) -> Opened:
        """Start the room of an account: its first process, or the next one where that has ended by itself."""
        told, (pidfd, ready) = self._ask("open_room", account=account)
        return Opened(told["pid"], pidfd, ready)

    def room(self, account: str) -> Room:
        """Return a living room, with a new connection to it."""
        told, (pidfd, connection) = self._ask("room", account=account)
        return Room(told["pid"], pidfd, socket.socket(fileno=connection))

    def way_out(self, account: str) -> socket.socket:
        """Return a new connection on which a living room may talk to other nodes through the gateway."""
        _, [connection] = self._ask("way_out", account=account)
        return socket.socket(fileno=connection)

    def reserve_group(
        self,
        account: str,
        reservation: str,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        gpu_minors: Sequence[int] = (),
    ) -> str:
        """Make a reservation's cgroup in a room, and return its path: "" where the machine has no cgroups (v2).

        Args:
            memory_bytes, cpus: the most that all its processes together get; None: as root's file says.
            gpu_minors: of the device nodes of its GPUs: its processes can open no others.
        """
        said = {"memory_bytes": memory_bytes, "cpus": cpus, "gpu_minors": [*gpu_minors]}
        limits = {key: value for key, value in said.items() if value is not None}
        return str(self._ask("reserve_group", account=account, reservation=reservation, **limits)[0]["path"])

    def end_group(self, account: str, reservation: str) -> int | None:
        """End everything in a reservation's cgroup, and return how many processes its memory limit had killed; None
        where the machine has no cgroups (v2): what runs goes on."""
        deaths: int | None = self._ask("end_group", account=account, reservation=reservation)[0]["memory_deaths"]
        return deaths

    def close_room(self, account: str) -> None:
        """End a room and everything that it started."""
        self._ask("close_room", account=account)

    def _ask(self, do: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            self._number += 1
            try:
                self._connection.send(json.dumps({"number": self._number, "do": do, **arguments}).encode())
                told = self._answer()
            except OSError as error:
                raise WardenGone(f"the warden has ended: {error.strerror}; this gateway is to end, too") from error
        if "refused" in told[0]:
            raise WardenRefused(told[0]["refused"], told[0].get("unfinished", False))
        return told

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        """Return the answer to the latest request; an earlier one may have come too late for who asked."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(
                self._connection, _LARGEST_ANSWER_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                raise WardenGone("the warden has ended: this gateway is to end, too")
            answer: dict[str, Any] = json.loads(data)
            if answer.pop("number") in (self._number, None):
                return answer, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
