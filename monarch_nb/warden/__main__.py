"""`python -m monarch_nb.warden`: root's part. It starts the gateway, answers it one request at a time, and ends
everything when it is told to, or when the gateway ends with 0."""

import argparse
import json
import logging
import os
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from monarch_nb.config import cadence, patience
from monarch_nb.warden.accounts import check_only_root_writes, look_up, look_up_allowed
from monarch_nb.warden.command import TOLD, parse
from monarch_nb.warden.groups import Groups, adopt_orphans, end_group
from monarch_nb.warden.requests import LARGEST_BYTES, Absent, Refused, Request, Unfinished, read
from monarch_nb.warden.rooms import SOCKET, WAY_OUT, Rooms
from monarch_nb.warden.starting import Account, become, fork, own_directory, read_answer
from monarch_nb.warden.users_file import Limit, Users, memory_text, read_users

_log = logging.getLogger("monarch-nb-warden")
GATEWAY_ENDS_S, AGAIN_S = patience(30.0), cadence(1.0)
RESTARTS = 75
"""The exit status after SIGHUP: rooms go on, and the next warden adopts them."""


class Warden:
    """Answers one gateway, which it starts again as often as it fails."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._users()
        self._gateway_account = look_up(options.gateway_user)
        if self._gateway_account.uid == 0:
            raise Refused("the gateway reads the network: it can not be root (--gateway-user)")
        os.umask(0o022)  # accounts pass through directories and cgroups to their own
        options.directory.mkdir(mode=0o711, exist_ok=True)
        check_only_root_writes(options.directory)
        top = os.open(options.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fchmod(top, 0o711)
        if options.cgroup is None:
            adopt_orphans()
        self._groups = Groups(options.cgroup)
        _log.info("%s", self._groups)
        self._rooms = Rooms(top, options.directory, self._groups, shlex.split(options.room))
        self._directory = own_directory(top, "gateway", self._gateway_account.uid, self._gateway_account.gid)
        self._gateway: socket.socket | None = None
        self._pid = self._stops = 0
        self._deadline = time.monotonic()  # of the gateway's start, or of its end; 0: none

    def serve(self) -> int:
        """Return the exit status, when everything has ended or is the next warden's."""
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        for handled in (signal.SIGCHLD, *TOLD):
            signal.signal(handled, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        while self._pid or not self._stops:
            if self._deadline and time.monotonic() >= self._deadline:
                self._on_deadline()
            poll = select.poll()
            for source in (woken.fileno(), self._gateway, *self._rooms.pidfds()):
                if source is not None:
                    poll.register(source, select.POLLIN)
            left_ms = max(0.0, self._deadline - time.monotonic()) * 1000 if self._deadline else None
            ready = {descriptor for descriptor, _ in poll.poll(left_ms)}
            with suppress(BlockingIOError):
                for number in woken.recv(4096):
                    self._on_signal(number)
            self._reap()
            if self._gateway is not None and self._gateway.fileno() in ready:
                self._on_datagram(self._gateway)
        if self._stops != signal.SIGHUP:
            self._rooms.close_all()
            _log.info("all rooms are closed")
        return RESTARTS if self._stops == signal.SIGHUP else 0

    def _on_deadline(self) -> None:
        self._deadline = 0.0
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [
            word.format(descriptor=3, directory=self._options.directory) for word in shlex.split(self._options.gateway)
        ]
        variables = {"MONARCH_NB_HOME": f"{self._options.directory}/gateway"}
        self._pid, told = fork(
            lambda tell: become(
                self._gateway_account,
                words,
                tell,
                directory=self._directory,
                keeps=theirs.fileno(),
                variables=variables,
                group=self._groups.gateway(),
                is_room=False,
            )
        )
        theirs.close()
        self._gateway = ours
        if refused := read_answer(told).get("refused"):
            _log.error("the gateway does not start: %s", refused)
        os.close(told)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._deadline = 0.0 if not self._pid else time.monotonic() + (0.0 if self._stops else GATEWAY_ENDS_S)
        self._stops = self._stops or number
        if self._pid:
            os.kill(self._pid, signal.SIGHUP if self._stops == signal.SIGHUP else signal.SIGTERM)

    def _reap(self) -> None:
        statuses: dict[int, int] = {}
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[reaped[0]] = reaped[1]
        self._rooms.reap(statuses)
        if self._pid not in statuses:
            return
        code = os.waitstatus_to_exitcode(statuses[self._pid])
        _log.info("the gateway has ended (%d)", code)
        self._pid, self._deadline = 0, time.monotonic() + AGAIN_S
        self._stops = self._stops or (int(signal.SIGTERM) if code == 0 else 0)
        self._hang_up()
        if group := self._groups.gateway():
            with suppress(Refused):  # what does not end has no socket of ours
                end_group(group)

    def _hang_up(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        self._gateway = None

    def _on_datagram(self, gateway: socket.socket) -> None:
        number, descriptors = None, list[int]()
        try:
            datagram, _, flags, _ = gateway.recvmsg(LARGEST_BYTES + 1)
        except OSError:  # it has ended, and left an answer unread
            datagram = b""
        if not datagram:  # it is started again
            self._hang_up()
            return
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise Refused("this is no request: too long, or with descriptors")
            request = read(datagram)
            number = request.number
            answer, descriptors = self._answer(request)
        except Refused as refused:
            level = logging.INFO if isinstance(refused, Absent) else logging.WARNING
            _log.log(level, "refused: %s, for %.200s", ascii(str(refused)), ascii(datagram[:200]))
            answer = {"refused": str(refused), **({"unfinished": True} if isinstance(refused, Unfinished) else {})}
        except Exception:  # noqa: BLE001  # a fault of ours in one request ends nobody's room
            _log.exception("a request failed")
            answer = {"refused": "the warden could not do it, and its log says why"}
        try:
            reply = json.dumps({"number": number, **answer}).encode()
            socket.send_fds(gateway, [reply], descriptors, socket.MSG_DONTWAIT)
        except OSError as error:
            _log.warning("the gateway takes no answer: %s", error)
        for descriptor in {*descriptors} - {*self._rooms.pidfds()}:  # which stay
            os.close(descriptor)

    def _answer(self, request: Request) -> tuple[dict[str, Any], list[int]]:
        asked = request.arguments
        if request.do == "accounts":
            return {"people": self._people(asked["names"])}, []
        if request.do == "rooms":
            return {"accounts": self._rooms.accounts()}, []
        account = asked["account"]
        if request.do == "open_room":
            users, found = self._users(), self._allowed([account])[account]
            if isinstance(found, str):
                raise Refused(found)
            room, ready = self._rooms.open(found, users.limit_of(account, found.groups), users.rooms)
            _log.info("%s has a room: process %d", account, room.pid)
            return {"pid": room.pid}, [room.pidfd, ready]
        if request.do == "room":
            room = self._rooms.find(account)
            return {"pid": room.pid}, [room.pidfd, self._rooms.connect(room, SOCKET)]
        if request.do == "way_out":
            return {}, [self._rooms.connect(self._rooms.find(account), WAY_OUT)]
        if request.do == "reserve_group":
            amounts = self._amounts(account, Limit(asked.get("memory_bytes"), asked.get("cpus")))
            gpus, room = asked.get("gpu_minors", ()), self._rooms.find(account)
            return {"path": self._rooms.reserve(room, asked["reservation"], *amounts, gpus)}, []
        if request.do == "end_group":
            return {"memory_deaths": self._rooms.end_group(account, asked["reservation"])}, []
        self._rooms.close(account)
        _log.info("the room of %s is closed", account)
        return {}, []

    def _people(self, names: list[str]) -> dict[str, dict[str, str]]:
        users, people = self._users(), dict[str, dict[str, str]]()
        accounts = {name: users.account_of(name) for name in names}
        found = self._allowed(account for account in accounts.values() if account)
        for name, account in accounts.items():
            if account is None:
                people[name] = {"refused": f"users.toml has no account for {name}"}
            else:
                told = found[account]
                people[name] = {"refused": told} if isinstance(told, str) else {"account": account}
        return people

    def _allowed(self, accounts: Iterable[str]) -> dict[str, Account | str]:
        """Return accounts that may have a room, and of the others why not."""
        users, found = self._users(), look_up_allowed(accounts)
        for name, account in found.items():
            if isinstance(account, str):
                continue
            if account.uid == self._gateway_account.uid:
                found[name] = f"{name} is the gateway's own account"
            elif not users.may(name, account.groups):
                found[name] = f"{name} may not: `allow` in users.toml names neither the account nor a group of it"
        return found

    def _amounts(self, account: str, asked: Limit) -> tuple[int | None, float | None]:
        most, said = self._users().limit_of(account, look_up(account).groups), f"{account} may have at most"
        if asked.memory_bytes and most.memory_bytes and asked.memory_bytes > most.memory_bytes:
            memory, wanted = memory_text(most.memory_bytes), memory_text(asked.memory_bytes)
            raise Refused(f"{said} {memory} of memory on this machine, not {wanted} (limits in users.toml)")
        if asked.cpus and most.cpus and asked.cpus > most.cpus:
            raise Refused(f"{said} {most.cpus:g} CPUs on this machine, not {asked.cpus:g} (limits in users.toml)")
        return asked.memory_bytes or most.memory_bytes, asked.cpus or most.cpus

    def _users(self) -> Users:
        """Return what users.toml says now; while something is wrong with it, nobody may."""
        path = self._options.users
        if not path.exists():
            return Users()
        check_only_root_writes(path)
        users, problems = read_users(path.read_text())
        if problems:
            raise Refused(f"{path}, {problems[0]}: until it is in order, nobody may")
        return users


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)  # until they can be answered: rooms of an earlier warden are to end
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    options = parse()
    try:
        return Warden(options).serve()
    except Refused as refused:
        sys.stderr.write(f"monarch-nb warden: {refused}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
