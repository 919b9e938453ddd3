"""Interrupting a run of the main thread: SIGINT for Python code, cancellation for a cell that awaits, broken groups for
a collective.

An interrupt carries a run id and counts only while that run's user code executes: the handler raises only when the
user's frames are on the stack, so neither an idle rank nor our own code is ever hit. The control thread calls `press`
again and again until the run ends, because a signal that arrives a moment too early is dropped: before the user's code
has begun, or while our own does what must not be broken off (`_NOT_NOW`).
"""

import _signal  # type: ignore[import-not-found]
import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.worker.control.activities import PRESS_INTERVAL_S, Activities, Activity, collective_of
from monarch_nb.worker.groups import forming
from monarch_nb.worker.mail.post import is_sending
from monarch_nb.worker.shell.failures import RunInterrupted
from monarch_nb.worker.user_code import UserCode, is_unbroken, outwards

_FORCE_AFTER_S = cadence(1.0)
"""A signal handler of the user's gets this long before the exception is forced on the main thread."""

_NOT_NOW = (forming.keeps_books, is_sending, is_unbroken)
"""What says of the frames of a thread that they are not to be interrupted now."""


class ActiveRun(Activity):
    """The run that the main thread executes.

    Attributes:
        is_script: the process ends with it.
        has_status: its value is the exit status of a program, also when that failed.
        forced: the exception was forced on the main thread.
    """

    def __init__(self, run_id: str, *, is_script: bool = False, has_status: bool = False) -> None:
        main = threading.main_thread().ident or 0
        super().__init__(run_id=run_id, thread=main, makes_another=not is_script)
        self.is_script, self.has_status = is_script, is_script or has_status
        self.forced = False

    @property
    def was_left_alone(self) -> bool:
        """Whether we have sent it no signal."""
        return self.requested_at is None and self.abort is None

    def native_thread(self) -> int:
        return os.getpid()  # Python 3.11 keeps the main thread's native_id of before the fork

    def poke(self) -> None:
        signal.pthread_kill(self.thread, signal.SIGINT)


class Interrupter:
    """Owns SIGINT in a rank.

    Args:
        activities: all that executes user code.
        loop: the main thread's.
        user_code: knows the user's frames.
        entries: the code of those functions that call user code; the handler raises only below one of them.
        not_user_files: files of functions that an entry also calls but that are not user code.
    """

    def __init__(
        self,
        activities: Activities,
        loop: asyncio.AbstractEventLoop,
        user_code: UserCode,
        entries: set[CodeType],
        not_user_files: set[str],
    ) -> None:
        self._activities = activities
        self._loop = loop
        self._user_code = user_code
        self._entries = entries
        self._not_user_files = not_user_files
        self._pid = os.getpid()
        self._forcing = threading.Lock()
        self._early = ""
        self.active: ActiveRun | None = None

    def install(self) -> None:
        """Take SIGINT (again: user code may have taken it)."""
        if self._handler_was_replaced():
            signal.signal(signal.SIGINT, self._on_signal)
            sys.unraisablehook = self._on_unraisable

    def request(self, run_id: str, by: str = "") -> bool:
        """Ask that a run be interrupted (an empty id: whatever runs); return whether it runs. From any thread. `by` is
        who asks, when it is not who submitted it.

        The run may still be on its way here: requests come on another connection.
        """
        self._early = run_id
        active = self.active
        if active is None or run_id not in ("", active.run_id):
            return False
        active.interrupted_by = by
        if active.delivered and self._has_own_handler() and collective_of(active) and active.is_still():
            self._activities.free_if_hung(active)  # Python calls the handler, which was told before, only then
            return True
        active.request()
        active.forced = False
        self.press()
        return True

    def begin(self, active: ActiveRun) -> bool:
        """A run begins; return False when its interrupt was faster. On the main thread."""
        self.active = active
        self._activities.begin(active)
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
            self._poke(active)
        if active.requested_at is None:
            return active.abort is not None
        if self._has_own_handler():
            if not active.delivered:
                active.deliver()
                active.is_still()  # from now on
                self._poke(active)
            return False
        waited_s = active.waited_s()
        if waited_s >= PRESS_INTERVAL_S:
            self._activities.free_if_hung(active)
        if not active.delivered:
            if active.task is not None:
                self._loop.call_soon_threadsafe(self._cancel, active)
            self._poke(active)
            if waited_s >= _FORCE_AFTER_S and not active.forced and self._handler_was_replaced():
                self._force(active)
        return True

    def finished(self) -> None:
        """The active run has ended. On the main thread, which waits for what is being done to that run."""
        active = self.active
        if active is None:
            return
        self._activities.end(active)
        with self._forcing:
            self.active = None
        if active.forced:
            raise_in_thread(active.thread, None)

    def _poke(self, active: ActiveRun) -> None:
        with self._forcing:
            if self.active is active:  # else the next run would take it for an interrupt of its own
                active.poke()

    def _force(self, active: ActiveRun) -> None:
        with self._forcing:
            if self.active is active:  # else the next run would be hit
                active.forced = True
                raise_in_thread(active.thread, RunInterrupted)

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            raise KeyboardInterrupt  # a forked child of the user's
        active = self.active
        if active is None or any(is_ours(outwards(frame)) for is_ours in _NOT_NOW):
            return
        if active.is_due and self._runs_user_code(frame):
            raise active.take_due()
        if active.was_left_alone and self._runs_user_code(frame):
            raise KeyboardInterrupt  # of user code's own, as of a watchdog that calls interrupt_main()
        if active.requested_at is None or active.delivered:
            return
        if active.waited_s() > _FORCE_AFTER_S and self._user_code.line_of_stack(outwards(frame)):
            raise active.error()  # in a callback of the user's that keeps the event loop from cancelling the cell

    def _runs_user_code(self, frame: FrameType | None) -> bool:
        for each in outwards(frame):
            if each.f_back is not None and each.f_back.f_code in self._entries:
                return each.f_code.co_filename not in self._not_user_files
        return False

    def _cancel(self, active: ActiveRun) -> None:
        if not active.delivered and active.task is not None and not active.task.done():
            active.deliver()
            active.task.cancel()

    def _has_own_handler(self) -> bool:
        """Return whether user code knows what is to be done at Ctrl-C: it is told once, and has its time."""
        handler = _signal.getsignal(signal.SIGINT)
        return callable(handler) and handler not in (self._on_signal, signal.default_int_handler)

    def _handler_was_replaced(self) -> bool:
        # Not signal.getsignal, which tries to make an enum of the handler: 6% of an empty run.
        return bool(_signal.getsignal(signal.SIGINT) != self._on_signal)

    def _on_unraisable(self, unraisable: Any) -> None:
        """What is raised inside a destructor is swallowed by Python: raise it again."""
        active, error = self.active, unraisable.exc_value
        if active is not None and isinstance(error, RunInterrupted):
            active.delivered_at = None
        elif active is not None and error is not None and error is active.abort:
            active.abort_delivered = False
        else:
            sys.__unraisablehook__(unraisable)


def raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Let a thread raise `error` at its next bytecode; None takes that back."""
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
