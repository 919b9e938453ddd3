"""The rooms: one process for each account and what it started, written down for the next warden."""

import json
import logging
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.config import patience
from monarch_nb.warden import groups as cgroups
from monarch_nb.warden import pam
from monarch_nb.warden.groups import Groups, start_ticks
from monarch_nb.warden.requests import Absent, Refused, Unfinished
from monarch_nb.warden.starting import Account, Tell, become, connect, fork, in_child, own_directory, read_answer
from monarch_nb.warden.users_file import Limit

_log = logging.getLogger("monarch-nb-warden")
SOCKET, WAY_OUT = "s/allocator", "s/gateway"
ENDS_S = patience(10.0)
"""So long the warden waits for all rooms, when it ends itself. It looks at each for half a second at a time."""
DIES_S = patience(1.0)
"""So long everybody waits for a killed process. What waits in the kernel, for a home that hangs, is left to end."""


@dataclass
class Room:
    """Attributes: pidfd: -1 when the process has ended, as `ended` says. reservations: those that have a group."""

    account: str
    uid: int
    pid: int
    start_ticks: int
    reservations: list[str] = field(default_factory=list)
    pidfd: int = -1
    ended: str = ""


class Rooms:
    """Opens, adopts and ends rooms."""

    def __init__(self, top: int, path: Path, groups: Groups, command: Sequence[str]) -> None:
        """Args: top, path: the warden's directory. command: of a room, with {directory}, {ready} and {account}."""
        self._top, self._path, self._groups, self._command = top, path, groups, command
        self._rooms: dict[str, Room] = {}
        self._directory = own_directory(top, "rooms", 0, 0, 0o711)
        self._adopt()

    def open(self, account: Account, limit: Limit, most: int) -> tuple[Room, int]:
        """Start a room's process; return the room, and the end of a pipe to which the process can write."""
        earlier = self._rooms.get(account.name)
        if earlier is not None and earlier.pidfd >= 0:
            raise Refused(f"{account.name} has a room already")
        if earlier is not None and earlier.uid != account.uid:
            raise Refused(f"{account.name} is another account than the one that had the room: close that first")
        if any(room.uid == account.uid and room is not earlier for room in self._rooms.values()):
            raise Refused(f"another account has the uid {account.uid} of {account.name}, and a room already")
        if earlier is None and len(self._rooms) >= most:
            raise Refused(f"{most} accounts have a room already, and no more may at a time (rooms in users.toml)")
        group = self._groups.make(account.name, account.uid, "", limit.memory_bytes, limit.cpus)
        with ExitStack() as opened, ExitStack() as on_failure:
            opened.callback(
                os.close, directory := own_directory(self._directory, account.name, account.uid, account.gid)
            )
            ready, writes = os.pipe2(os.O_CLOEXEC)
            on_failure.callback(os.close, ready)
            opened.callback(os.close, writes)
            may_start, starts = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, may_start)
            opened.callback(os.close, starts)
            pid, told = fork(lambda tell: self._become(account, tell, directory, writes, (may_start, starts), group))
            opened.callback(os.close, told)
            room = Room(account.name, account.uid, pid, start_ticks(pid), pidfd=os.pidfd_open(pid))
            room.reservations = earlier.reservations if earlier else []
            self._rooms[account.name] = room
            self._write()
            os.write(starts, b"1")
            if refused := read_answer(told).get("refused"):
                signal.pidfd_send_signal(room.pidfd, signal.SIGKILL)
                if earlier is None and select.select([room.pidfd], [], [], DIES_S)[0]:
                    self.close(account.name)
                raise Refused(str(refused))
            on_failure.pop_all()
            return room, ready

    def _become(
        self, account: Account, tell: Tell, directory: int, writes: int, starts: tuple[int, int], group: str
    ) -> None:
        os.close(starts[1])
        if not os.read(starts[0], 1):  # the warden has ended before it wrote the room down
            return
        path = f"{self._path}/rooms/{account.name}"
        become(
            account,
            [word.format(directory=path, ready=3, account=account.name) for word in self._command],
            tell,
            directory=directory,
            keeps=writes,
            variables={"MONARCH_NB_HOME": path}
            | ({"MONARCH_NB_CGROUP": group} if group else {})
            | ({"MONARCH_NB_FENCED": "gpus"} if self._groups.fences_gpus else {}),
            group=Path(group, "own") if group else None,
            is_room=True,
        )

    def find(self, account: str) -> Room:
        """Return a living room.

        Raises:
            Refused: there is none, or it has ended.
        """
        room = self._rooms.get(account)
        if room is None or room.pidfd < 0:
            raise Absent(f"{account} has no room{f': it ended ({room.ended})' if room and room.ended else ''}")
        return room

    def connect(self, room: Room, path: str) -> int:
        """Return a new connection to a room's allocator. Args: path: SOCKET, or WAY_OUT."""
        directory = own_directory(self._directory, room.account, room.uid, -1)
        try:
            return connect(directory, path, room.uid).detach()
        except OSError as error:
            raise Refused(f"the room of {room.account} does not listen (yet): {error.strerror}") from error
        finally:
            os.close(directory)

    def reserve(
        self, room: Room, reservation: str, memory_bytes: int | None, cpus: float | None, gpu_minors: Sequence[int]
    ) -> str:
        """Make the group of a reservation; return its path, "" where there are no cgroups."""
        if reservation in room.reservations:
            raise Refused("the reservation has a group already")
        path = self._groups.make(room.account, room.uid, reservation, memory_bytes, cpus, gpu_minors)
        room.reservations.append(reservation)
        self._write()
        return path

    def end_group(self, account: str, reservation: str) -> int | None:
        """End everything in a reservation's group; return how many died of its memory limit before, None without
        cgroups."""
        room = self._rooms.get(account)
        if room is None or reservation not in room.reservations:
            raise Refused("there is no group of such a reservation")
        deaths = None
        if group := self._groups.room(account):
            deaths = cgroups.memory_deaths(group / reservation)
            cgroups.end_group(group / reservation)
        room.reservations.remove(reservation)
        self._write()
        return deaths

    def close(self, account: str) -> None:
        """End a room's process and everything that it started."""
        if (room := self._rooms.get(account)) is None:
            raise Refused(f"{account} has no room")
        if group := self._groups.room(account):
            cgroups.end_group(group)
        else:
            cgroups.end_tree(room.uid, room.pid)
        _forget_process(room)
        del self._rooms[account]
        if pam.is_there():
            in_child(lambda: pam.Pam(account).close_session())
        self._write()

    def close_all(self) -> None:
        """End everything that can be ended."""
        left, deadline = list(self._rooms), time.monotonic() + ENDS_S
        while left:
            for account in list(left):
                try:
                    self.close(account)
                    left.remove(account)
                except (Refused, OSError) as error:  # a full disk keeps nobody else's room alive
                    if not isinstance(error, Unfinished) or time.monotonic() > deadline:
                        _log.error("the room of %s: %s", account, error)
                        left.remove(account)

    def accounts(self) -> list[str]:
        """Return which have a room, or processes of one that has ended."""
        return list(self._rooms)

    def pidfds(self) -> list[int]:
        return [room.pidfd for room in self._rooms.values() if room.pidfd >= 0]

    def reap(self, statuses: Mapping[int, int]) -> None:
        """Note which processes of rooms have ended; what they started goes on until the room is closed or opened."""
        poll = select.poll()
        for pidfd in self.pidfds():
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(0)}
        for room in self._rooms.values():
            if room.pidfd in ended:
                _forget_process(room)
                code = os.waitstatus_to_exitcode(statuses[room.pid]) if room.pid in statuses else None
                room.ended = "" if code is None else f"exit status {code}" if code >= 0 else f"signal {-code}"

    def _adopt(self) -> None:
        """Take over what the last warden has left; end what no table names."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # a disk that was full, another version
            written = json.loads((self._path / "rooms.json").read_text())
            if written["boot_id"] == _boot_id():
                self._rooms = {facts["account"]: Room(**facts) for facts in written["rooms"]}
        for room in self._rooms.values():
            room.pidfd = self._adopted(room)
        for account in set(self._groups.rooms()) - self._rooms.keys():
            if group := self._groups.room(account):
                try:
                    cgroups.end_group(group)
                except Unfinished as error:  # nobody waits for that
                    _log.error("%s", error)

    def _adopted(self, room: Room) -> int:
        """Return the pidfd of a room's process, if a pid is still its: it began then, as that user, in that group."""
        try:
            pidfd = os.pidfd_open(room.pid)
        except OSError:
            return -1
        with suppress(OSError, ValueError):
            status = Path(f"/proc/{room.pid}/status").read_text(errors="replace")
            is_theirs = f"\nUid:\t{room.uid}\t{room.uid}\t{room.uid}\t" in status
            group = self._groups.room(room.account)
            is_inside = not group or str(room.pid) in (group / "own" / "cgroup.procs").read_text().split()
            if is_theirs and is_inside and start_ticks(room.pid) == room.start_ticks:
                return pidfd
        os.close(pidfd)
        return -1

    def _write(self) -> None:
        kept = ("account", "uid", "pid", "start_ticks", "reservations")
        rooms = [{key: value for key, value in asdict(room).items() if key in kept} for room in self._rooms.values()]
        content: dict[str, Any] = {"boot_id": _boot_id(), "rooms": rooms}
        new = os.open("rooms.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=self._top)
        with open(new, "w") as file:
            json.dump(content, file)
        os.rename("rooms.new", "rooms.json", src_dir_fd=self._top, dst_dir_fd=self._top)


def _forget_process(room: Room) -> None:
    if room.pidfd >= 0:
        os.close(room.pidfd)
    room.pidfd = -1


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
