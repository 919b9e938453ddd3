"""User code that this rank executes, and how it is interrupted: SIGINT for Python code of the main thread, cancellation
for a cell that awaits, broken groups for a collective, whichever thread hangs in it.

An interrupt carries a run id and counts only while that run's user code executes: the handler raises only when the
user's frames are on the stack, so neither an idle rank nor our own code is ever hit. The control thread calls `press`
again and again until the run ends, because a signal that arrives a moment too early is dropped: before the user's code
has begun, or while our own does what must not be broken off (`_NOT_NOW`).

Process groups are the rank's, not a thread's: breaking them frees all that hang, and all that use them are told so.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.errors import GROUP_ABORTED, ProcessGroupAborted
from monarch_nb.worker.control import children
from monarch_nb.worker.groups import breaking, c10d, forming
from monarch_nb.worker.mail import is_sending
from monarch_nb.worker.shell.failures import RunInterrupted, interruption
from monarch_nb.worker.user_code import UserCode, is_unbroken, outwards

PRESS_INTERVAL_S = cadence(0.1)
_PEERS_BREAK_WITHIN_S = 3 * PRESS_INTERVAL_S
"""Peers that hang in a collective break it one interval after their interrupt."""


@dataclass(eq=False, kw_only=True)
class Activity:
    """User code that a thread of this rank executes.

    Attributes:
        run_id: of the run that it is, or is called in the name of.
        thread: the thread's ident.
        makes_another: whether another group can be made after one was broken: the process goes on.
        task: that executes it when it may await.
        requested_at: when its interrupt was asked for; None when none was.
        interrupted_by: "by bob from b.ipynb": who asked for that and where, when that is news to who submitted the run.
        delivered_at: when the interrupt was raised in user code, its task cancelled, or a handler of its own told; None
            when there is none, or it has yet to be.
        collective: what it was freed from.
        group_aborted: process groups were broken under it.
        abort: what to raise in user code because its group was aborted, though it was not interrupted.
        abort_delivered: it was raised.
    """

    run_id: str
    thread: int
    makes_another: bool = True
    started_s: float = field(default_factory=time.monotonic)
    task: asyncio.Task[object] | None = None
    requested_at: float | None = None
    interrupted_by: str = ""
    delivered_at: float | None = None
    collective: str = ""
    group_aborted: bool = False
    abort: ProcessGroupAborted | None = None
    abort_delivered: bool = False
    _cpu_ticks: int = -1
    _place: tuple[int, int] | None = None

    def request(self) -> None:
        """Note that it is to be interrupted."""
        self.requested_at = time.monotonic()
        self.delivered_at = None

    @property
    def delivered(self) -> bool:
        """Whether user code has got its interrupt: what it does since is its own."""
        return self.delivered_at is not None

    def deliver(self) -> None:
        """Note that user code gets its interrupt now."""
        self.delivered_at = time.monotonic()

    def waited_s(self) -> float:
        """Return how long ago its interrupt was asked for."""
        return time.monotonic() - (self.requested_at or time.monotonic())

    def error(self) -> RunInterrupted:
        """Return what its interrupt raises."""
        return interruption(
            self.collective, self.group_aborted, makes_another=self.makes_another, by=self.interrupted_by
        )

    @property
    def is_due(self) -> bool:
        """Whether user code is to raise something."""
        has_abort = self.abort is not None and not self.abort_delivered
        return has_abort or (self.requested_at is not None and not self.delivered)

    def take_due(self) -> BaseException:
        """Return what user code raises now, which is then delivered. It `is_due`."""
        if self.abort is not None and not self.abort_delivered:
            self.abort_delivered = True
            return self.abort
        self.deliver()
        return self.error()

    def poke(self) -> None:
        """Make its thread raise what is due, if it executes user code now. From any thread."""
        raise NotImplementedError

    def native_thread(self) -> int:
        """Return what the kernel calls its thread."""
        natives = (each.native_id for each in threading.enumerate() if each.ident == self.thread)
        return next(natives, None) or 0

    def frame(self) -> FrameType | None:
        """Return the innermost frame of its thread; None when that executes something else meanwhile."""
        return sys._current_frames().get(self.thread)

    def may_wait_unseen(self) -> bool:
        """Return whether its thread may wait for a peer in C code that no name tells."""
        return self.task is None and not self.delivered

    def is_blocked(self) -> bool:
        """Return whether its thread sleeps and has used no CPU since this was last asked."""
        state, ticks = thread_state(self.native_thread())
        before, self._cpu_ticks = self._cpu_ticks, ticks
        return state == "S" and ticks == before

    def is_still(self) -> bool:
        """Return whether its thread is where it was when this was last asked. One that waits for its GPU spins."""
        frame, before = self.frame(), self._place
        self._place = (id(frame), frame.f_lasti) if frame is not None else None
        return before is not None and self._place == before

    def was_ended_by(self, error: BaseException) -> bool:
        """Return whether `error` is what its interrupt caused; note what that did to process groups.

        Its peers were interrupted too: they may have broken the group that this rank was about to use.
        """
        if self.requested_at is None:
            return False
        aborted = breaking.readable(error)
        if aborted is not None:
            self.group_aborted = True
            self.collective = self.collective or aborted.collective
        elif isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
            self.group_aborted = self.group_aborted or breaking.is_broken(_PEERS_BREAK_WITHIN_S)
        return aborted is not None or isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))


class Activities:
    """All that executes user code now.

    Attributes:
        must_forget: groups were broken while somebody used them: who ends last forgets them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[Activity, None] = {}
        self.must_forget = False

    def __iter__(self) -> Iterator[Activity]:
        """Over those that there are now: others begin meanwhile, on their own threads."""
        return iter(list(self._all))

    def begin(self, activity: Activity) -> None:
        """It is about to execute user code."""
        self._all[activity] = None

    def end(self, activity: Activity) -> None:
        """It has ended. On its thread, which waits for what is being done to it."""
        with self._lock:
            self._all.pop(activity, None)

    def forget_groups(self, ended: Activity | None = None) -> None:
        """Forget the groups that were broken, unless there is somebody to be freed from them, who does it then.

        Args:
            ended: what has used them.
        """
        if ended is None:
            self.must_forget = True
        if self.must_forget or (ended is not None and ended.group_aborted):
            self.must_forget = any(each.group_aborted for each in self)
            if not self.must_forget:
                breaking.forget_groups()

    def break_groups(
        self,
        reason: str,
        last_run: int = 0,
        *,
        follows: bool = False,
        freed: Activity | None = None,
        collective: str = "",
    ) -> None:
        """Break this rank's process groups, but none that a run after `last_run` made. On the control thread.

        Args:
            reason, follows: as `breaking.break_groups` takes them.
            freed: who hangs in them, and is marked, as are all that can be seen to.
            collective: in which.
        """
        with self._lock:
            if freed is not None and freed not in self._all:
                return
            waiting = {each: name for each in self if (name := collective_of(each))}
            if freed is not None:
                waiting.setdefault(freed, collective)

            def stop_others() -> None:
                # A kernel of an aborted communicator ends without an error, its data undefined: none may go on.
                if c10d.uses_nccl():
                    are_open = bool(c10d.open_on_gpu())
                    for each in self:
                        if each.requested_at is None and (are_open or each in waiting or _is_in_torch(each)):
                            each.abort = ProcessGroupAborted(f"{reason}; {GROUP_ABORTED}", reason=reason)
                            each.abort_delivered = False
                            each.poke()

            threads = [each.thread for each in waiting]
            if breaking.break_groups(reason, last_run, follows=follows, threads=threads, prepare=stop_others):
                for each, name in waiting.items():
                    each.group_aborted = True
                    each.collective = each.collective or name

    def free_if_hung(self, activity: Activity) -> None:
        """Break this rank's process groups if an activity that is interrupted hangs in a collective. On the control
        thread."""
        collective, blocked, still = collective_of(activity), activity.is_blocked(), activity.is_still()
        if collective and collective != "backward":
            hangs = True
        elif collective or activity.may_wait_unseen():
            # Backward may only compute; and C code that no interrupt reaches may be a wait without a name: one for the
            # GPU, too, where a collective of NCCL waits for peers.
            hangs = breaking.in_use() and (blocked or (still and bool(c10d.open_on_gpu())))
        else:
            hangs = False
        if hangs:
            self.break_groups("interrupted", freed=activity, collective=collective or "")


def collective_of(activity: Activity) -> str | None:
    """Return the collective that its thread waits in."""
    frame = activity.frame()
    return breaking.collective(frame) if frame is not None else None


def _is_in_torch(activity: Activity) -> bool:
    return any(f"{os.sep}torch{os.sep}" in frame.f_code.co_filename for frame in outwards(activity.frame()))


def thread_state(thread_id: int) -> tuple[str, int]:
    """Return the state letter of a thread of this process and the CPU time it has used, in clock ticks."""
    try:
        with open(f"/proc/self/task/{thread_id}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", -1
    return fields[0].decode(), int(fields[11]) + int(fields[12])


_FORCE_AFTER_S = cadence(1.0)
"""A signal handler of the user's gets this long before the exception is forced on the main thread."""

_NOT_NOW = (forming.keeps_books, is_sending, is_unbroken)
"""What says of the frames of a thread that they are not to be interrupted now."""


BETWEEN_RUNS = "a save between two runs"
"""What `Interrupter.between_runs` calls."""


class ActiveRun(Activity):
    """The run that the main thread executes; without an id what it does of ours between two runs.

    Attributes:
        is_script: the process ends with it.
        began: when: what began later belongs to it.
        has_status: its value is the exit status of a program, also when that failed.
        forced: the exception was forced on the main thread.
        takes_signal: the handler finds out whose signal it was called for.
    """

    def __init__(self, run_id: str, *, is_script: bool = False, has_status: bool = False) -> None:
        main = threading.main_thread().ident or 0
        super().__init__(run_id=run_id, thread=main, makes_another=not is_script)
        self.is_script, self.has_status = is_script, is_script or has_status
        self.began = children.Moment.now()
        self.forced = self.takes_signal = self._is_poked = False
        self._sending = threading.RLock()

    def native_thread(self) -> int:
        return os.getpid()  # Python 3.11 keeps the main thread's native_id of before the fork

    def poke(self, *, for_own_handler: bool = False) -> None:
        with self._sending:
            self._is_poked = not for_own_handler
            signal.pthread_kill(self.thread, signal.SIGINT)

    def was_poked(self) -> bool:
        """Return whether the handler is called for a signal of ours. None is on its way then: the next one, which may
        come at any time, is of user code's own."""
        self.takes_signal = True
        try:
            with self._sending:
                _nothing()  # where Python calls the handler for what was sent since it was called
                was_poked, self._is_poked = self._is_poked, False
        finally:
            self.takes_signal = False
        return was_poked


class Interrupter:
    """Owns SIGINT in a rank. User code sees Python's own handler in its place (`hide`).

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
        self._entries = entries | {_call_between.__code__}
        self._not_user_files = not_user_files
        self._handler = self._on_signal
        self._pid = os.getpid()
        self._forcing = threading.Lock()
        self._early = ""
        self.active: ActiveRun | None = None

    def install(self) -> None:
        """Take SIGINT (again: user code may have taken it, or left it blocked)."""
        if self._handler_was_replaced():
            _signal.signal(signal.SIGINT, self._handler)
            sys.unraisablehook = self._on_unraisable
        _signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))

    def hide(self) -> None:
        """Let user code see Python's handler of SIGINT where ours is, and set ours where it sets Python's: it may keep
        what was there before, to call it later, which raises, or look whether the signal is anybody's, as asyncio does.
        """
        plain_signal, plain_getsignal = signal.signal, signal.getsignal

        def seen(handler: Any) -> Any:
            return signal.default_int_handler if handler is self._handler else handler

        @functools.wraps(plain_signal)
        def set_handler(signalnum: int, handler: Any) -> Any:
            is_ours = handler is signal.default_int_handler and signalnum == signal.SIGINT
            return seen(plain_signal(signalnum, self._handler if is_ours else handler))

        @functools.wraps(plain_getsignal)
        def get_handler(signalnum: int) -> Any:
            return seen(plain_getsignal(signalnum))

        signal.signal, signal.getsignal = set_handler, get_handler

    def request(self, run_id: str, by: str = "", whence: str = "") -> bool:
        """Ask that a run be interrupted (an empty id: whatever runs), and what it waits for between two runs; return
        whether there is something of these. From any thread. `by` is who asks, when it is not who submitted it, and
        `whence` where, when it is not where it was submitted.

        The run may still be on its way here: requests come on another connection.
        """
        self._early = run_id
        active = self.active
        if active is None or (active.run_id and run_id not in ("", active.run_id)):
            return False
        return self._interrupt(active, by, whence)

    def _interrupt(self, active: ActiveRun, by: str = "", whence: str = "") -> bool:
        active.interrupted_by = f"by {by} {whence}".strip() if by else whence
        if active.delivered and self._has_own_handler() and collective_of(active) and active.is_still():
            self._activities.free_if_hung(active)  # Python calls the handler, which was told before, only then
            return True
        asked = children.Moment.now()
        active.request()
        active.forced = False
        self.press()
        if active.run_id:
            children.interrupt(active.began, asked)
        return True

    def between_runs(self, function: Callable[[], None]) -> None:
        """Call something of ours that takes its time, on the main thread, while no run is active: until it returns, or
        until somebody interrupts it or the run that waits behind it."""
        self.install()
        self.active = ActiveRun("")
        self._activities.begin(self.active)
        try:
            _call_between(function)
        except KeyboardInterrupt:
            pass
        finally:
            self.finished()

    def end_between(self) -> None:
        """Interrupt what is called between two runs, and no run. From any thread."""
        active = self.active
        if active is not None and not active.run_id:
            self._interrupt(active)

    def begin(self, active: ActiveRun) -> bool:
        """A run begins; return False when its interrupt was faster. On the main thread."""
        self.active = active
        self._activities.begin(active)
        if active.run_id == self._early:  # looked at after `active` is set: `request` does it the other way round
            active.requested_at = time.monotonic()
            return False
        return True

    def has_tasks(self) -> bool:
        """Return whether code of the user's may go on in a task, beside the run. From any thread."""
        mine = self.active.task if self.active is not None else None
        return bool(asyncio.all_tasks(self._loop) - {mine})

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
                self._poke(active, for_own_handler=True)
            return False
        waited_s = active.waited_s()
        if waited_s >= PRESS_INTERVAL_S and active.run_id:  # a save uses no groups, and must cost none
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

    def _poke(self, active: ActiveRun, *, for_own_handler: bool = False) -> None:
        with self._forcing:
            if self.active is active:  # else the next run would take it for an interrupt of its own
                active.poke(for_own_handler=for_own_handler)

    def _force(self, active: ActiveRun) -> None:
        with self._forcing:
            if self.active is active:  # else the next run would be hit
                active.forced = True
                raise_in_thread(active.thread, RunInterrupted)

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            raise KeyboardInterrupt  # a forked child of the user's
        active = self.active
        if active is None or active.takes_signal:
            return
        was_poked = active.was_poked()
        if any(is_ours(outwards(frame)) for is_ours in _NOT_NOW):
            return
        if active.is_due and self._runs_user_code(frame):
            raise active.take_due()
        if not was_poked and self._runs_user_code(frame):
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
        return callable(handler) and handler is not self._handler

    def _handler_was_replaced(self) -> bool:
        # Not signal.getsignal, which tries to make an enum of the handler: 6% of an empty run.
        return _signal.getsignal(signal.SIGINT) is not self._handler

    def _on_unraisable(self, unraisable: Any) -> None:
        """What is raised inside a destructor is swallowed by Python: raise it again."""
        active, error = self.active, unraisable.exc_value
        if active is not None and isinstance(error, RunInterrupted):
            active.delivered_at = None
        elif active is not None and error is not None and error is active.abort:
            active.abort_delivered = False
        else:
            sys.__unraisablehook__(unraisable)


def _call_between(function: Callable[[], None]) -> None:
    """An interrupt may raise in there, as in user code."""
    function()


def _nothing() -> None:
    """Do nothing."""


def raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Let a thread raise `error` at its next bytecode; None takes that back."""
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
