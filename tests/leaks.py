"""What a pool may not leave behind: processes, sockets and files."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field
from pathlib import Path

from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import KEPT

LOOK_EVERY_S = 0.05
GRACE_S = 60.0
"""How long what is ending may take: it is killed already, but the machine may be busy with other things."""


@dataclass(frozen=True)
class Process:
    """A living process (a zombie is none: PID 1 reaps late).

    Attributes:
        state: as in /proc when it was looked at: "R" runs or could, "S" sleeps.
    """

    pid: int
    parent: int
    command: str
    state: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.pid} (child of {self.parent}): {self.command}"


def processes_of(home: Path) -> list[Process]:
    """Return the processes whose environment or command line names `home`, other than this one."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            process = _read_process(int(entry.name), home)
            if process is not None:
                found.append(process)
    return found


def leaks_of(home: Path) -> list[str]:
    """Return what is left of a pool that was taken down, after a short grace for processes that are ending."""
    deadline = time.monotonic() + GRACE_S
    for process in processes_of(home):
        wait_for_end(process.pid, deadline - time.monotonic())
    while (leaks := _left(home)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)  # one that has no command line any more, and is no child of ours, holds sockets still
    return leaks


def _left(home: Path) -> list[str]:
    leaks = [f"process {process}" for process in processes_of(home)]
    leaks += [f"socket {path}" for path in _listening_sockets() if path.startswith(str(home))]
    kept = home / KEPT  # what ranks wrote outlives its pool
    return [*leaks, *(f"file {path}" for path in sorted(home.rglob("*")) if not path.is_relative_to(kept))]


def _read_process(pid: int, home: Path) -> Process | None:
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].decode().split()
        arguments = (folder / "cmdline").read_bytes().split(b"\0")
        environment = (folder / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if fields[0] in "ZX":
        return None
    mine = f"{HOME_VARIABLE}={home}".encode() in environment
    if mine or any(os.fsencode(home) in argument for argument in arguments):
        return Process(pid, int(fields[1]), b" ".join(arguments).decode(errors="replace")[:200], fields[0])
    return None


def wait_for_end(pid: int, timeout_s: float) -> None:
    """Wait until a process has ended, also one that is not our child and that PID 1 has yet to reap."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
    finally:
        os.close(pidfd)


def _listening_sockets() -> list[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return [fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8]
