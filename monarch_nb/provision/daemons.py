"""Allocators as daemons of this machine: started detached, awaited, asked and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from monarch_nb.allocator.processes.processes import is_alive
from monarch_nb.config import PROTOCOL, RANK_TOKEN_VARIABLE, VERSION, NodePaths, patience
from monarch_nb.errors import NodeUnreachable, PoolError
from monarch_nb.ground import interrupting
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

LOG_TAIL_LINES = 15

# Run by a small interpreter of its own, because a kernel has threads and must not fork. The interpreter is the leader
# of a new session and leaves at once: the daemon is neither in the kernel's process group nor in its process tree. Nor
# does it inherit that Ctrl-C is ignored or signals are blocked: they end it, and tell it that its children have ended.
_DETACH = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if os.fork() == 0: os.execv(sys.argv[1], sys.argv[1:])"""

# What says "you are in this notebook", "you belong to that rank" or "you are this task of that job" is not true of a
# daemon and the ranks that inherit its environment.
_NOT_INHERITED = (
    *(RANK_TOKEN_VARIABLE, "JPY_", "MPLBACKEND", "VSCODE_", "PYDEVD_"),
    *("SLURM_", "SLURMD_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_COMM_WORLD_", "PALS_", "FLUX_TASK_"),
)
_INHERITED = "SLURM_CONF"
"""Says where the cluster is."""


@dataclass
class Starting:
    """An allocator that was started: it writes a line of JSON to `pipe` when it serves and one when its template is
    warm or has failed. Its log begins at `log_start`; before that is an earlier allocator's."""

    node_id: str
    paths: NodePaths
    pipe: int
    log_start: int = 0
    received: bytearray = field(default_factory=bytearray)

    @property
    def lines(self) -> int:
        """How many of the two lines have come."""
        return self.received.count(b"\n")

    def read(self) -> None:
        """Take what is in the pipe; called when there is something.

        Raises:
            PoolError: the allocator is dead; the message ends with the last lines of its log.
        """
        if data := os.read(self.pipe, 4096):
            self.received += data
        elif self.lines < 2:
            raise PoolError(f"{self.node_id} did not start ({self.paths.allocator_log}):\n{self.log_tail()}")

    @property
    def template_error(self) -> str:
        """Why its template did not get warm; empty when it did, or is still at it."""
        return str(json.loads(self.received.splitlines()[1])["template_error"]) if self.lines > 1 else ""

    def log_tail(self) -> str:
        """Return the last lines that it wrote to its log."""
        try:
            text = self.paths.allocator_log.read_bytes()[self.log_start :].decode(errors="replace")
        except FileNotFoundError:
            text = ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-LOG_TAIL_LINES:]) or "    (its log is empty)"

    def close(self) -> None:
        """Give the pipe back; the allocator goes on."""
        os.close(self.pipe)


def start_allocator(
    paths: NodePaths,
    node_id: str,
    procs: int,
    gpus: str,
    preload: Iterable[str],
    *,
    isolate: bool = False,
    log_limit: str = "",
) -> Starting:
    """Start a node's allocator, detached from this process twice (own session, parent gone); return at once."""
    command = [sys.executable, "-m", "monarch_nb.allocator", "--directory", str(paths.directory), "--node-id", node_id]
    command += ["--procs", str(procs), "--gpus", gpus, "--python", sys.executable]
    if isolate:
        command += ["--isolate"]
    if log_limit:
        command += ["--log-limit", log_limit]
    for module in preload:
        command += ["--preload", module]
    environment = daemon_environment()
    partial = paths.start.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # on a full disk it starts all the same
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"command": command, "environment": environment}, file)
        partial.replace(paths.start)
    return _start(paths, node_id, command, environment)


def start_again(paths: NodePaths, node_id: str) -> Starting | None:
    """Start a node's allocator as it was started before, with its Python, arguments and environment, whoever asks; None
    when that is unknown, or its Python is gone."""
    try:
        before = json.loads(paths.start.read_text())
    except (OSError, ValueError):
        return None
    if not os.access(before["command"][0], os.X_OK):
        return None
    return _start(paths, node_id, before["command"], before["environment"])


def _start(paths: NodePaths, node_id: str, command: Sequence[str], environment: dict[str, str]) -> Starting:
    pipe, ready_fd = os.pipe()
    try:
        with paths.allocator_log.open("ab") as log:
            log_start = log.tell()
            detach([*command, "--ready-fd", str(ready_fd)], paths.directory, environment, log, [ready_fd])
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(ready_fd)
    return Starting(node_id, paths, pipe, log_start)


def detach(
    command: Sequence[str], directory: Path, environment: dict[str, str], log: IO[bytes], pass_fds: Sequence[int] = ()
) -> None:
    """Start a process, its program named by a path, that is neither in this one's process group nor in its tree.

    Args:
        directory: where it is started. log: takes what it prints.
    """
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _DETACH, *command],
        check=True,
        cwd=directory,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def daemon_environment() -> dict[str, str]:
    """Return this process's environment without what ties it to a notebook, a rank or a task of Slurm's or MPI's."""
    return {
        name: value for name, value in os.environ.items() if name == _INHERITED or not name.startswith(_NOT_INHERITED)
    }


def wait_for_lines(
    starting: Sequence[Starting], lines: int, deadline: float, came: Callable[[Starting], None] = lambda _: None
) -> None:
    """Wait until each has written that many lines; `came` is told of each. Can be interrupted.

    Raises:
        PoolError: one died, or `deadline` (of time.monotonic) passed.
    """
    with selectors.DefaultSelector() as selector:
        for one in starting:
            if one.lines < lines:
                selector.register(one.pipe, selectors.EVENT_READ, one)
        if interrupt := interrupting.current():
            interrupt.check()
            selector.register(interrupt, selectors.EVENT_READ)
        while any(key.data is not None for key in selector.get_map().values()):
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                late = [cast(Starting, key.data) for key in selector.get_map().values() if key.data is not None]
                names = ", ".join(one.node_id for one in late)
                raise PoolError(f"{names} not ready in time; last lines of its log:\n{late[0].log_tail()}")
            for key, _ in events:
                if key.data is None and interrupt:
                    interrupt.check()
                one = cast(Starting, key.data)
                one.read()
                if one.lines >= lines:
                    selector.unregister(one.pipe)
                    came(one)


def describe(address: str, timeout_s: float = patience(10.0), identity: Identity | None = None) -> pb.DescribeReply:
    """Ask an allocator for its facts.

    Args:
        identity: who we are, for a node of a network.

    Raises:
        NodeUnreachable: it does not answer. Any error of monarch_nb that it answers with.
    """
    request = pb.DescribeRequest(protocol=PROTOCOL, client_version=VERSION)
    return cast(pb.DescribeReply, _call(address, "Describe", request, timeout_s, identity))


def usage(address: str, identity: Identity | None, timeout_s: float, *, standings: bool) -> pb.UsageReply:
    """Ask an allocator who holds what there. Arguments as of UsageRequest; errors as of `describe`."""
    request = pb.UsageRequest(standings=standings)
    return cast(pb.UsageReply, _call(address, "Usage", request, timeout_s, identity))


def shut_down(
    address: str, timeout_s: float = patience(5.0), identity: Identity | None = None, *, keep_logs: bool = False
) -> bool:
    """Tell an allocator to end its ranks, its templates and itself; return whether it has answered: else it left before
    its answer was read, or hangs, and the caller watches its process anyway.

    Args:
        keep_logs: what meshes printed that have ended stays on the node.
    """
    try:
        _call(address, "Shutdown", pb.ShutdownRequest(force=True, keep_logs=keep_logs), timeout_s, identity)
    except NodeUnreachable:
        return False
    return True


def tell_revoked(address: str, revocations: bytes, identity: Identity | None, timeout_s: float = patience(5.0)) -> None:
    """Bring an allocator a list of revoked certificates.

    Raises:
        NodeUnreachable: it does not answer. TrustError: it does not believe who has signed the list.
    """
    _call(address, "Revoke", pb.RevokeRequest(revocations=revocations), timeout_s, identity)


def _call(address: str, method: str, request: Any, timeout_s: float, identity: Identity | None) -> Any:
    from monarch_nb.rpc.channel import open_blocking_channel  # isort: skip  (sets gRPC's environment before grpc is imported)
    import grpc

    from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub
    from monarch_nb.rpc import status

    with open_blocking_channel(address, identity) as channel:
        try:
            return getattr(AllocatorStub(channel), method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise status.translate(cast(Any, error), address, address) from None


class Watched:
    """A living process of this machine that is not our child; signals can not reach another one of the same pid."""

    def __init__(self, identity: state_pb2.ProcessIdentity) -> None:
        self._pidfd: int | None = None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return
        if is_alive(identity):
            self._pidfd = pidfd
        else:
            os.close(pidfd)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; return whether it has."""
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def end(self, timeout_s: float) -> bool:
        """Wait until it has ended, then help with SIGTERM and SIGKILL; return whether it ended by itself."""
        if self.wait(timeout_s):
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            if self.wait(patience(5.0)):
                break
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
