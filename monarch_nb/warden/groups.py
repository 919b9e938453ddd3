"""Cgroups (v2): BASE/rooms/ACCOUNT has the limits of a person, in it `own` (the room's process and templates) and one
group for each reservation. The account may move its processes between its own groups; all else is root's."""

import contextlib
import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from monarch_nb.config import patience
from monarch_nb.warden.devices import fence_gpus
from monarch_nb.warden.requests import Refused, Unfinished

_log = logging.getLogger("monarch-nb-warden")
SOON_S = patience(0.5)
"""So long everybody waits for killed processes. What waits in the kernel, for a disk or a GPU, is asked for again."""
_SET_CHILD_SUBREAPER = 36
_CPU_PERIOD_US = 100_000
_CONTROLLERS = {"memory", "cpu"}


def own_group() -> Path | None:
    """Return the warden's own cgroup: the unit's, of which systemd may have given it the part `warden`; at the root of
    all, one below it. None where there is no cgroup v2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            lines = Path("/proc/self/cgroup").read_text().splitlines()
            path = Path(line.split()[4] + next(each[3:] for each in lines if each.startswith("0::")))
            path = path.parent if path.name == "warden" else path
            return path / "monarch-nb" if path == Path(line.split()[4]) else path
    return None


def adopt_orphans() -> None:
    """Have processes whose parents end stay below this one: without cgroups, `end_tree` looks there."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Groups:
    """The groups below one; without a base nothing is limited, and `end_tree` ends what it finds.

    Attributes:
        fences_gpus: whether only processes in a reservation's group can open GPUs, and only those of the reservation.
    """

    def __init__(self, base: Path | None) -> None:
        self._base, self.controllers, self.fences_gpus = base, set[str](), False
        if base is None:
            return
        _make(base)
        if not (base / "cgroup.kill").exists():
            raise Refused(f"{base} is no cgroup v2 that can be ended (Linux 5.14 or newer): see --without-cgroups")
        if str(os.getpid()) in (base / "cgroup.procs").read_text().split():  # limits are for groups without processes
            (_make(base / "warden") / "cgroup.procs").write_text("0")
        self.controllers = _CONTROLLERS & set((base / "cgroup.controllers").read_text().split())
        try:
            self._hand_down(base)
        except OSError as error:  # others' processes are in it, as in a session of sshd
            self.controllers = set()
            _log.warning("%s can not limit memory and CPUs (%s): run the unit in deploy/", base, error.strerror)
        self._hand_down(_make(base / "rooms"))
        try:
            fence_gpus(base / "rooms", ())
            self.fences_gpus = True
        except OSError as error:
            _log.warning("device nodes of GPUs are open to everybody: they can not be fenced (%s)", error.strerror)

    def __str__(self) -> str:
        """What they do, for the log."""
        if self._base is None:
            return "no cgroups (v2): nobody is limited, GPUs are not fenced, and some daemons are not found"
        limited = ", ".join(sorted(self.controllers)) or "nothing"
        return f"cgroups in {self._base} limit {limited}, and GPUs are {'' if self.fences_gpus else 'not '}fenced"

    def gateway(self) -> Path | None:
        return self._base and _make(self._base / "gateway")

    def room(self, account: str) -> Path | None:
        return self._base and self._base / "rooms" / account

    def rooms(self) -> list[str]:
        """Return the accounts that have a group."""
        return [path.name for path in (self._base / "rooms").iterdir() if path.is_dir()] if self._base else []

    def make(
        self,
        account: str,
        uid: int,
        reservation: str,
        memory_bytes: int | None,
        cpus: float | None,
        gpu_minors: Sequence[int] = (),
    ) -> str:
        """Make the group of a room (no reservation) or a reservation, limit it, and return its path; "" without any."""
        if (memory_bytes and "memory" not in self.controllers) or (cpus and "cpu" not in self.controllers):
            raise Refused(
                "this machine can not limit memory or CPUs: that takes cgroups (v2) with the controllers memory and cpu"
                ", and the unit in deploy/"
            )
        if (room := self.room(account)) is None:
            return ""
        group = _make(room / reservation if reservation else room)
        if "memory" in self.controllers:
            (group / "memory.max").write_text(str(memory_bytes or "max"))
            if (group / "memory.swap.max").exists():
                (group / "memory.swap.max").write_text("0" if memory_bytes else "max")
        if "cpu" in self.controllers:
            quota = int(cpus * _CPU_PERIOD_US) if cpus else "max"
            (group / "cpu.max").write_text(f"{quota} {_CPU_PERIOD_US}")
        if gpu_minors and self.fences_gpus:
            fence_gpus(group, gpu_minors)
        os.chown(group / "cgroup.procs", uid, -1)
        if not reservation:
            self._hand_down(group)
            os.chown(_make(group / "own") / "cgroup.procs", uid, -1)
        return str(group)

    def _hand_down(self, group: Path) -> None:
        for controller in sorted(self.controllers):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _make(group: Path) -> Path:
    group.mkdir(exist_ok=True)
    return group


def memory_deaths(group: Path) -> int:
    """Return how many processes of a group died because its memory limit was reached."""
    try:
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
    except OSError:  # nothing limits memory there
        return 0
    return int(events.get("oom_kill", 0))


def end_group(group: Path, patience_s: float = SOON_S) -> None:
    """SIGKILL everything in a group and below, wait until it is gone, and remove the group.

    Raises:
        Unfinished: it is not gone by then.
    """
    if not group.exists():
        return
    (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + patience_s
    with (group / "cgroup.events").open() as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while "populated 1" in events.read():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Unfinished(f"processes in {group} do not end: they wait in the kernel, for a disk or a GPU")
            events.seek(0)
    for below in [*(path for path in group.iterdir() if path.is_dir()), group]:
        below.rmdir()


def end_tree(uid: int, leader: int, patience_s: float = SOON_S) -> None:
    """Without cgroups: SIGKILL what descends from the warden or is of a room's session, and is its account's. Whom sudo
    made another, and what left its session and lost its parents before a restart of the warden, is not found."""
    deadline, why = time.monotonic() + patience_s, f"processes of uid {uid} do not end: "
    while found := _descendants(uid, leader):
        if time.monotonic() > deadline:
            raise Unfinished(f"{why}they start new ones faster than they are ended")
        poll, open_ones = select.poll(), list[int]()
        for pid, began_at in found.items():
            with contextlib.suppress(OSError):
                open_ones.append(pidfd := os.pidfd_open(pid))
                poll.register(pidfd, select.POLLIN)
                if start_ticks(pid) == began_at:  # nobody else has got the number since
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended = poll.poll(patience_s * 1000) or not open_ones  # all of it: the deadline may be near
        for pidfd in open_ones:
            os.close(pidfd)
        if not ended:
            raise Unfinished(f"{why}they wait in the kernel, for a disk or a GPU")


def _descendants(uid: int, leader: int) -> dict[int, int]:
    """Return the start time of each, by pid."""
    began, children = dict[int, int](), dict[int, list[int]]()
    found, todo = set[int](), [os.getpid(), leader]
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = Path(entry.path, "status").read_text(errors="replace").splitlines()
            facts = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
            if facts["State"][0] in "ZX" or int(facts["Uid"][0]) != uid:
                continue
            began[int(entry.name)] = start_ticks(int(entry.name))
            children.setdefault(int(facts["PPid"][0]), []).append(int(entry.name))
            if int(facts["NSsid"][0]) == leader:
                found.add(int(entry.name))
    while todo:
        below = children.pop(todo.pop(), [])
        found.update(below)
        todo += below
    return {pid: began[pid] for pid in found}


def start_ticks(pid: int) -> int:
    """Return when a process began: with its pid, this names it among all since the machine started."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
