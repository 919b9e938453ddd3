"""Interrupting a run: SIGINT for Python code, cancellation for a cell that awaits, broken connections for a collective.

An interrupt carries a run id and counts only while that run's user code executes: the handler raises only when the
user's frames are on the stack, so neither an idle rank nor our own code is ever hit. The control thread calls `press`
again and again until the run ends, because a signal that arrives a moment too early is dropped: before the user's code
has begun, or while our own keeps the books of process groups.
"""

import _signal  # type: ignore[import-not-found]
import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from monarch_nb.errors import GROUP_ABORTED, ProcessGroupAborted
from monarch_nb.worker.groups import breaking, forming
from monarch_nb.worker.shell.failures import RunInterrupted, interruption
from monarch_nb.worker.user_code import UserCode, outwards

PRESS_INTERVAL_S = 0.1
PEERS_BREAK_WITHIN_S = 3 * PRESS_INTERVAL_S
"""Peers that hang in a collective break it one interval after their interrupt."""
_FORCE_AFTER_S = 1.0
"""A signal handler of the user's gets this long before the exception is forced on the main thread."""


@dataclass
class ActiveRun:
    """The run that the main thread executes.

    Attributes:
        is_script: the process ends with it.
        task: of a cell that awaits.
        requested_at: when its interrupt was asked for; None when none was.
        delivered: the interrupt was raised in user code, or its task cancelled.
        collective: what it was freed from.
        group_aborted: process groups were broken.
        abort: what to raise in user code because its group was aborted, though the run was not interrupted.
        abort_delivered: it was raised.
    """

    run_id: str
    is_script: bool = False
    started: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None
    requested_at: float | None = None
    delivered: bool = False
    forced: bool = False
    collective: str = ""
    group_aborted: bool = False
    abort: ProcessGroupAborted | None = None
    abort_delivered: bool = False
    cpu_ticks: int = -1

    def error(self) -> RunInterrupted:
        """Return what its interrupt raises."""
        return interruption(self.collective, self.group_aborted, makes_another=not self.is_script)


class Interrupter:
    """Owns SIGINT in a rank.

    Args:
        loop: the main thread's.
        user_code: knows the user's frames.
        entries: the code of those functions that call user code; the handler raises only below one of them.
        not_user_files: files of functions that an entry also calls but that are not user code.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, user_code: UserCode, entries: set[CodeType], not_user_files: set[str]
    ) -> None:
        self._loop = loop
        self._user_code = user_code
        self._entries = entries
        self._not_user_files = not_user_files
        self._pid = os.getpid()
        self._main = threading.main_thread()
        self._breaking = threading.Lock()
        self._early = ""
        self.active: ActiveRun | None = None

    def install(self) -> None:
        """Take SIGINT (again: user code may have taken it)."""
        if self._handler_was_replaced():
            signal.signal(signal.SIGINT, self._on_signal)
            sys.unraisablehook = self._on_unraisable

    def request(self, run_id: str) -> bool:
        """Ask that a run be interrupted (an empty id: whatever runs); return whether it runs. From any thread.

        The run may still be on its way here: requests come on another connection.
        """
        self._early = run_id
        active = self.active
        if active is None or run_id not in ("", active.run_id):
            return False
        active.requested_at = time.monotonic()
        active.delivered = active.forced = False
        self.press()
        return True

    def begin(self, active: ActiveRun) -> bool:
        """A run begins; return False when its interrupt was faster. On the main thread."""
        self.active = active
        if active.run_id == self._early:  # looked at after `active` is set: `request` does it the other way round
            active.requested_at = time.monotonic()
            return False
        return True

    def press(self) -> bool:
        """Do what the interrupt or abort of the active run needs now; return whether it must be called again."""
        active = self.active
        if active is None:
            return False
        if active.abort is not None and not active.abort_delivered:
            self._send_signal()
        if active.requested_at is None:
            return active.abort is not None
        if active.is_script and self._has_own_handler():
            if not active.delivered:
                active.delivered = True
                self._send_signal()
            return False
        waited_s = time.monotonic() - active.requested_at
        if waited_s >= PRESS_INTERVAL_S:
            self._break_collective(active)
        if not active.delivered:
            if active.task is not None:
                self._loop.call_soon_threadsafe(self._cancel, active)
            if self.active is active:
                self._send_signal()
            if waited_s >= _FORCE_AFTER_S and not active.forced and self._handler_was_replaced():
                self._force(active)
        return True

    def finished(self) -> None:
        """The active run has ended. On the main thread, which waits for what is being done to that run."""
        with self._breaking:
            active, self.active = self.active, None
        if active is not None and active.forced:
            _raise_in_thread(self._main, None)

    def break_groups(self, active: ActiveRun, collective: str, reason: str, last_run: int = 0) -> None:
        """Break this rank's process groups under a run, but none that a run after `last_run` made. On the control
        thread.
        """

        def stop_cell() -> None:
            # A kernel of an aborted communicator ends without an error, its data undefined: the cell must not go on.
            if active.requested_at is None and _uses_nccl():
                active.abort = ProcessGroupAborted(f"{reason}; {GROUP_ABORTED}", reason=reason)
                active.abort_delivered = False
                self._send_signal()

        with self._breaking:
            if self.active is active and breaking.break_groups(reason, last_run, prepare=stop_cell):
                active.group_aborted = True
                active.collective = active.collective or collective

    def _force(self, active: ActiveRun) -> None:
        with self._breaking:
            if self.active is active:  # else the next run would be hit
                active.forced = True
                _raise_in_thread(self._main, RunInterrupted)

    def _send_signal(self) -> None:
        if self._main.ident is not None:
            signal.pthread_kill(self._main.ident, signal.SIGINT)

    def _break_collective(self, active: ActiveRun) -> None:
        frame = sys._current_frames().get(self._main.ident or 0)
        collective = breaking.collective(frame) if frame is not None else None
        blocked = self._is_blocked(active)
        if collective and collective != "backward":
            hangs = True
        elif collective or (active.task is None and not active.delivered):
            # Backward may only compute; and C code that SIGINT does not reach may be a wait without a name.
            hangs = blocked and breaking.in_use()
        else:
            hangs = False
        if hangs:
            self.break_groups(active, collective or "", "interrupted")

    def _is_blocked(self, active: ActiveRun) -> bool:
        """Return whether the main thread sleeps and has used no CPU since this was last asked."""
        state, ticks = thread_state(self._pid)  # the main thread; Python 3.11 keeps its native_id of before the fork
        before, active.cpu_ticks = active.cpu_ticks, ticks
        return state == "S" and ticks == before

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            raise KeyboardInterrupt  # a forked child of the user's
        active = self.active
        if active is None or forming.keeps_books(outwards(frame)):
            return
        if active.abort is not None and not active.abort_delivered and self._runs_user_code(frame):
            active.abort_delivered = True
            raise active.abort
        if active.requested_at is None or active.delivered:
            return
        if self._runs_user_code(frame):
            active.delivered = True
            raise active.error()
        if time.monotonic() - active.requested_at > _FORCE_AFTER_S and self._user_code.line_of_stack(outwards(frame)):
            raise active.error()  # in a callback of the user's that keeps the event loop from cancelling the cell

    def _runs_user_code(self, frame: FrameType | None) -> bool:
        for each in outwards(frame):
            if each.f_back is not None and each.f_back.f_code in self._entries:
                return each.f_code.co_filename not in self._not_user_files
        return False

    def _cancel(self, active: ActiveRun) -> None:
        if not active.delivered and active.task is not None and not active.task.done():
            active.delivered = True
            active.task.cancel()

    def _has_own_handler(self) -> bool:
        """Return whether a program knows what is to be done at Ctrl-C: it is told once, and has its time."""
        return self._handler_was_replaced() and _signal.getsignal(signal.SIGINT) != signal.default_int_handler

    def _handler_was_replaced(self) -> bool:
        # Not signal.getsignal, which tries to make an enum of the handler: 6% of an empty run.
        return bool(_signal.getsignal(signal.SIGINT) != self._on_signal)

    def _on_unraisable(self, unraisable: Any) -> None:
        """What is raised inside a destructor is swallowed by Python: raise it again."""
        active, error = self.active, unraisable.exc_value
        if active is not None and isinstance(error, RunInterrupted):
            active.delivered = False
        elif active is not None and error is not None and error is active.abort:
            active.abort_delivered = False
        else:
            sys.__unraisablehook__(unraisable)


def _uses_nccl() -> bool:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if c10d is None or cuda is None or not cuda.is_initialized():
        return False
    return any("nccl" in str(backends) for backends in c10d._world.pg_backend_config.values())


def thread_state(thread_id: int) -> tuple[str, int]:
    """Return the state letter of a thread of this process and the CPU time it has used, in clock ticks."""
    try:
        with open(f"/proc/self/task/{thread_id}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", -1
    return fields[0].decode(), int(fields[11]) + int(fields[12])


def _raise_in_thread(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Let a thread raise `error` at its next bytecode; None takes that back."""
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), argument)
