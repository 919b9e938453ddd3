"""Processes of a node: who they are, how they ended, and how to end them with everything they started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import itertools
import logging
import os
import pwd
import re
import signal
import struct
import time
from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.deaths import likely_cause
from monarch_nb.ground.code_names import CODE_NAME, code_label
from monarch_nb.ground.namespaces import pid_namespace
from monarch_nb.mismatches import MISMATCH
from monarch_nb.proto import run_pb2, state_pb2

_log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_INFO = struct.Struct("<QQ11Ii")  # struct pidfd_info of linux/pidfd.h, first version
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
# In what faulthandler writes.
_CALLS_CELL = re.compile(r'/IPython/core/interactiveshell\.py", line \d+ in run_code$')
_OUR_FILES = ("/monarch_nb/worker/", "/monarch_nb/actor/")
_CODE_FILE = re.compile(rf'File "({CODE_NAME.pattern})"')


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that the exit codes of ranks reach us when their template is dead."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@cache
def boot_id() -> str:
    """Return what differs after every boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def seconds_since_boot() -> float:
    """Return a time that nobody sets and that goes on while the machine sleeps; it begins anew with `boot_id`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identify(pid: int) -> state_pb2.ProcessIdentity:
    """Return the identity of a living process, or raise ProcessLookupError."""
    fields = _stat_fields(pid)
    if fields is None:
        raise ProcessLookupError(pid)
    return state_pb2.ProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def identify_in(namespace: str, pid: int) -> state_pb2.ProcessIdentity | None:
    """Return the identity of a process that says of itself where its pid counts; None when that is not here."""
    if not pid or not namespace or namespace != pid_namespace():
        return None
    with contextlib.suppress(ProcessLookupError):
        return identify(pid)
    return None


def is_alive(process: state_pb2.ProcessIdentity) -> bool:
    """Return whether that very process lives; a zombie does not."""
    if not process.pid or process.boot_id != boot_id():
        return False
    fields = _stat_fields(process.pid)
    return fields is not None and fields[0] not in "ZX" and int(fields[19]) == process.start_ticks


def user_name(uid: int) -> str:
    """Return the name of a user, or its number where that is not known."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def name_of(pid: int) -> str:
    """Return what `ps -o comm` shows of a process."""
    return Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()


def _is_zombie(process: state_pb2.ProcessIdentity) -> bool:
    fields = _stat_fields(process.pid)
    return fields is not None and fields[0] in "ZX" and int(fields[19]) == process.start_ticks


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, which is number 3 there and 0 here. Before them is the
    process's name: any bytes, and one of several that is cut after 15 of them is not text."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # of every process on the machine: a Path costs as much again
            return stat.read().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def exit_status_of(pidfd: int) -> int | None:
    """Return the wait status of a reaped process that is not our child (Linux 6.15 and newer), else None."""
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, exit_code = _PIDFD_INFO.unpack(info)
    return int(exit_code) if mask & _PIDFD_INFO_EXIT else None


def reap(pid: int) -> int | None:
    """Return the wait status of a child (also an adopted one) that has ended, else None."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if reaped == pid else None


def reap_orphans(known: Container[int]) -> None:
    """Reap what ranks have started and left: it is ours to reap, and there is room for so many zombies only.

    Args:
        known: those that somebody waits for. What this process itself has started is of its own session, and spared.
    """
    for pid in _children():
        fields = _stat_fields(pid)
        if pid not in known and fields is not None and fields[0] == "Z" and int(fields[3]) != os.getsid(0):
            reap(pid)


def _children() -> list[int]:
    """Return the children of all threads; none when the kernel does not tell (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, Path(f"/proc/self/task/{task}/children").read_bytes().split())
    return found


def kill_trees(processes: Iterable[tuple[state_pb2.ProcessIdentity, str]]) -> None:
    """SIGKILL ranks with everything they started: all of their session, and all that carry their token.

    Args:
        processes: each rank's identity and token.
    """
    processes = list(processes)
    roots = {process.pid: process for process, _ in processes if process.pid > 1}  # 0 would be every kernel thread
    tokens = {f"{RANK_TOKEN_VARIABLE}={token}".encode() for _, token in processes if token}
    for process in list(roots.values()):
        if is_alive(process):
            _kill(process.pid)
        elif _stat_fields(process.pid) is not None and not _is_zombie(process):
            del roots[process.pid]  # the pid is another process's by now, and so would be its session
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        fields = _stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            continue
        session = int(fields[3])
        # A session id is the pid of its leader, which no other process gets while members of the session live.
        if (session in roots and pid != session) or (tokens and not tokens.isdisjoint(_environment(pid))):
            _kill(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return environment.read().split(b"\0")
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # another user's by now, as what `sudo` starts: the others are to end all the same
        _log.warning("process %d, which a rank started, can not be ended: it is another user's", pid)


def oom_kills() -> int:
    """Return how many processes the out-of-memory killer has ended on this machine since boot."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def explain_death(
    pid: int,
    wait_status: int | None,
    *,
    killed_by_us: bool,
    oom_kills_before: int,
    stderr_tail: list[str],
    stderr: Sequence[str] = (),
) -> run_pb2.Death:
    """Say how a process ended and the likely cause; an unknown status is called unknown.

    Args:
        stderr_tail: what is shown of its last words. stderr: the last lines that it wrote.
    """
    death = run_pb2.Death(pid=pid, stderr_tail=stderr_tail)
    if wait_status is None:
        death.likely_cause = "exit status unknown: the processes that watched it were gone too"
    elif os.WIFSIGNALED(wait_status):
        death.signal = os.WTERMSIG(wait_status)
        cause = _explain_signal(death.signal, killed_by_us, oom_kills() > oom_kills_before)
        death.likely_cause = _explain_mismatch(death.signal, stderr) or cause
    else:
        death.exit_code = os.WEXITSTATUS(wait_status)
        death.likely_cause = "it ended itself (os._exit, or a library did)"
    return death


_TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def last_words(stderr: list[str], stacks: Path, count: int) -> list[str]:
    """Return what says most about a rank's death: its last lines of stderr, or where its cell was when it crashed.

    Args:
        stderr: its last lines.
        stacks: where faulthandler writes.
        count: how many lines to return at most.
    """
    written = stacks.read_text(errors="replace").splitlines() if stacks.exists() else []
    crashes = [index for index, line in enumerate(written) if line.startswith("Fatal Python error: ")]
    if not crashes:
        return stderr[-count:]
    report = written[crashes[-1] :]
    starts = [index for index, line in enumerate(report) if line.startswith(("Current thread ", "Thread "))]
    current = (index for index in starts if report[index].startswith("Current "))
    stack = next(current, starts[-1] if starts else 0)  # a thread without Python has crashed: the main thread is last
    frames = itertools.takewhile(lambda line: line.startswith("  File "), report[stack + 1 :])
    return [report[0], *_users_frames(list(frames))[: count - 1]]


def _users_frames(frames: list[str]) -> list[str]:
    """Return a stack, innermost frame first, without what called the cell or the endpoint: IPython and this package."""
    calls = [index for index, frame in enumerate(frames) if _CALLS_CELL.search(frame)]
    ours = [index for index, frame in enumerate(frames) if any(file in frame for file in _OUR_FILES)]
    end = calls[-1] if calls else ours[0] if ours else len(frames)
    return [_CODE_FILE.sub(_labelled, frame) for frame in frames[: end or len(frames)]]


def _labelled(file: re.Match[str]) -> str:
    return " ".join(code_label(file[1]) or ())


def _explain_mismatch(number: int, stderr: Sequence[str]) -> str:
    """Return why Gloo has ended the process: it calls std::terminate when a peer sends more than it expects."""
    told = _TOO_LONG.search("\n".join(stderr)) if number == signal.SIGABRT else None
    if told is None:
        return ""
    return (
        f"{MISMATCH}: Gloo got {int(told[1]):,} bytes of a peer where this rank's collective takes "
        f"{int(told[2]):,} (Gloo sends tensors in parts, so these are no sizes of tensors); ranks have called "
        "different collectives, or with tensors of different sizes"
    )


def _explain_signal(number: int, killed_by_us: bool, out_of_memory: bool) -> str:
    if killed_by_us:
        return "killed because it did not stop when asked"
    if number == signal.SIGKILL and out_of_memory:
        return "out of memory: killed by the kernel's OOM killer; use a smaller batch, model or fewer ranks per node"
    return likely_cause(number)


class ProcessWatch:
    """Learns of a process's end from its pidfd, within a millisecond.

    Attributes:
        ended: set when the process is gone.
    """

    watched: ClassVar[set[int]] = set()
    """The pids whose exit statuses somebody wants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.watched.add(pid)
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            self._fd: int | None = os.pidfd_open(pid)
            self._loop.add_reader(self._fd, self._on_end)
        except ProcessLookupError:
            self._fd = None
            self.ended.set()

    def _on_end(self) -> None:
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        self.ended.set()

    def kill(self) -> None:
        """SIGKILL this process, and no other that has its pid by now."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def exit_status(self) -> int | None:
        """Return the wait status when the kernel still tells it to us, who may not be the parent."""
        status = reap(self.pid)
        if status is None and self._fd is not None:
            status = exit_status_of(self._fd)
        return status

    def close(self) -> None:
        self.watched.discard(self.pid)
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


def is_caught(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def thread_named(pid: int, name: str) -> int | None:
    """Return a thread of a process that the kernel calls so."""
    for thread in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda each: int(each.name)):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (thread / "comm").read_text().rstrip() == name:
                return int(thread.name)
    return None
