"""Directories that no link leads out of, and processes that are somebody else from their first line on."""

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from monarch_nb.config import patience
from monarch_nb.warden import pam
from monarch_nb.warden.requests import Refused

ANSWERS_S = patience(20.0)
"""So long PAM and the directory of accounts may take, and everybody waits for them."""
OWN_S = patience(2.0)
"""So long a process may take once it is an account's: its home may hang, and other processes of it may stop this."""
_OPENAT2, _NO_SYMLINKS, _BENEATH, _NO_XDEV = 437, 0x04, 0x08, 0x01
_CLOSE_RANGE, _ON_EXECUTION = 436, 4
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIRST_FREE = 10
_IS_OWN = b"{}\n"

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Account:
    """An account of this machine, as its own process is to be."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[str, ...] = ()


def open_beneath(
    directory: int, path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY, *, of_account: bool = True
) -> int:
    """Open what is below a directory; a symbolic link anywhere, and what leads out of it, is an error. With
    `of_account` so is a mount point: somebody may have mounted what hangs."""
    resolve = _NO_SYMLINKS | _BENEATH | (_NO_XDEV if of_account else 0)
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, resolve)
    found = ctypes.CDLL(None, use_errno=True).syscall(_OPENAT2, directory, os.fsencode(path), how, len(how))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(found)


def own_directory(parent: int, name: str, uid: int, gid: int, mode: int = 0o700) -> int:
    """Open a directory of somebody's, made when it is not there, in a parent that only root writes."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        is_new = True
    except FileExistsError:
        is_new = False
    try:
        directory = open_beneath(parent, name, of_account=uid != 0)
    except OSError as error:
        raise Refused(f"the directory {name} can not be opened: {error.strerror}") from error
    if is_new:
        os.fchown(directory, uid, gid)
        os.fchmod(directory, mode)
    if os.fstat(directory).st_uid != uid:
        os.close(directory)
        raise Refused(f"the directory {name} is another user's: remove it, or give it to uid {uid}")
    return directory


def connect(directory: int, path: str, uid: int) -> socket.socket:
    """Connect to a socket below a directory, if both the socket and who listens there are of an account."""
    inode = open_beneath(directory, path, os.O_PATH)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        told = os.fstat(inode)
        if not stat.S_ISSOCK(told.st_mode) or told.st_uid != uid:
            raise Refused("what is to be the room's socket is not one of its account")
        connection.settimeout(patience(1.0))
        connection.connect(f"/proc/self/fd/{inode}")  # exactly this one, whatever has its name by now
        _, listener, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if listener != uid:
            raise Refused("who listens at the room's socket is not its account")
        connection.setblocking(True)
        return connection
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(inode)


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a function returns that a process of its own calls: whatever it loads and opens ends with it."""
    pid, told = fork(lambda tell: tell(work()))
    try:
        return read_answer(told) or {"refused": "the process that was to look has ended"}
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def fork(work: Callable[[Tell], object]) -> tuple[int, int]:
    """Call a function in a new process, with a function that tells; return the pid and where to read what it tells: the
    caller closes that."""
    told, tells = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(told)
        os.close(tells)
        raise
    if pid:
        os.close(tells)
        return pid, told
    signal.set_wakeup_fd(-1)  # while it is root's: whoever may signal it later is not to wake the warden
    for handled in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(handled, signal.SIG_DFL)
    tells = fcntl.fcntl(tells, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)  # 0 to 3 get other meanings

    def tell(answer: dict[str, Any]) -> None:
        os.write(tells, json.dumps(answer).encode() + b"\n")

    try:
        work(tell)
    except BaseException as error:  # noqa: BLE001  # nothing of the warden may go on in this process
        tell({"refused": str(error) or type(error).__name__})
    finally:
        os._exit(1)


def read_answer(told: int) -> dict[str, Any]:
    """Return what a process tells; empty when it ended, or became another program, without a word. One that is an
    account's from now on tells {} before."""
    deadline, found, poll = time.monotonic() + ANSWERS_S, b"", select.poll()
    poll.register(told, select.POLLIN)
    why = f"it took more than {ANSWERS_S:.0f} s: look at PAM and the directory of accounts"
    while not found.endswith(b"\n") or found == _IS_OWN:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return {"refused": why}
        if not (part := os.read(told, 1 << 16)):
            return {}
        found += part
        if found == _IS_OWN:
            deadline = time.monotonic() + OWN_S
            why = (
                f"the account's process did not start within {OWN_S:.0f} s: its home hangs, or somebody has stopped it"
            )
    answer: dict[str, Any] = json.loads(found.removeprefix(_IS_OWN))
    return answer


def become(
    account: Account,
    command: Sequence[str],
    tell: Tell,
    *,
    directory: int,
    keeps: int,
    variables: Mapping[str, str],
    group: Path | None,
    is_room: bool,
) -> NoReturn:
    """Turn this process into a program of an account's, in its cgroup and a session of its own.

    Args:
        tell: of `fork`; it is told {} when this process is about to be the account's.
        keeps: the one descriptor that it gets, as number 3.
        is_room: as at a login, through PAM, and what it prints goes to room.log in its directory.

    Raises:
        Refused: PAM refuses the account.
    """
    os.setsid()
    if group:  # before the first line of other people's code
        (group / "cgroup.procs").write_text("0")
    os.initgroups(account.name, account.gid)
    found: dict[str, str] = {}
    if is_room and pam.is_there():
        conversation = pam.Pam(account.name)
        conversation.check()
        found = conversation.open_session()
        if group:  # pam_systemd moves a process
            (group / "cgroup.procs").write_text("0")
    os.umask(0o077)
    tell({})
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    output = 2
    if is_room:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        output = os.open("room.log", flags, 0o600, dir_fd=directory)
    user = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    _execute(command, keeps, output, {"PATH": _PATH, "LANG": "C.UTF-8", **found, **user, **variables})


def _execute(command: Sequence[str], keeps: int, output: int, environment: Mapping[str, str]) -> NoReturn:
    try:
        os.chdir(environment["HOME"])
    except OSError:
        os.chdir("/")
    sources = (os.open(os.devnull, os.O_RDONLY), output, output, keeps)
    for number, source in enumerate([fcntl.fcntl(source, fcntl.F_DUPFD, _FIRST_FREE) for source in sources]):
        os.dup2(source, number)
    if ctypes.CDLL(None).syscall(_CLOSE_RANGE, 4, ctypes.c_uint(-1), _ON_EXECUTION):
        raise Refused("the kernel can not close descriptors at a start: Linux 5.11 or newer is needed")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(command[0], list(command), dict(environment))
