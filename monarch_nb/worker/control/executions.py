"""What actors of this rank execute: where it prints, who may interrupt it, where it is.

An endpoint runs on its actor's thread, which no signal reaches. An interrupt of a run of calls cancels what is async;
in other threads it raises KeyboardInterrupt, as SIGINT does on the main thread: again and again until it is delivered,
and only in user code (`takes_interrupts`). It may come late, when the endpoint has just returned: then it is taken
back.

An exception for another thread waits until that thread comes back to Python: one that sleeps in C is not woken. So
`time.sleep`, the wait of a Condition (and with it those for events, queues, semaphores, barriers and futures),
`Thread.join` and `Popen.wait` are others on these threads (`install`). What is not: a lock that is acquired itself, and
I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from monarch_nb.actor.engine.outside import Execution
from monarch_nb.config import cadence
from monarch_nb.errors import ProcessGroupAborted
from monarch_nb.ground import interrupting
from monarch_nb.worker.autosaves.keeper import Keeper
from monarch_nb.worker.control.interrupts import PRESS_INTERVAL_S, Activities, Activity, raise_in_thread
from monarch_nb.worker.debug.debugger import Debugger
from monarch_nb.worker.groups import forming
from monarch_nb.worker.shell import failures, streams
from monarch_nb.worker.shell.failures import RunInterrupted
from monarch_nb.worker.user_code import PACKAGE, UserCode, awaited_frames, is_standard, outwards

_SLICE_S = cadence(0.1)
_LONG_S = 1e9
_plain_sleep, _plain_join, _plain_wait = time.sleep, threading.Thread.join, subprocess.Popen.wait


class Waiter:
    """Who waits on an actor's thread. `wake` ends its wait, and it raises there what it then finds in `check`."""

    _sleeps_on: LockType | None = None

    def check(self) -> None:
        """Raise what is to be raised now, if anything is. On its thread."""
        raise NotImplementedError

    def is_here(self) -> bool:
        """Return whether the calling thread is its own, and executes it."""
        raise NotImplementedError

    def wake(self) -> bool:
        """End its wait; return whether it waits. From any thread."""
        lock = self._sleeps_on
        if lock is not None:
            with contextlib.suppress(RuntimeError):  # it was woken before
                lock.release()
        return lock is not None

    def wait(self, lock: LockType, timeout_s: float) -> bool:
        """Acquire a lock as `lock.acquire` does that nobody else waits for, unless it is woken."""
        self._sleeps_on = lock
        try:
            self.check()  # who wakes from here on releases the lock
            acquired = lock.acquire(True, timeout_s)
        finally:
            self._sleeps_on = None
        self.check()
        return acquired


current: ContextVar[Waiter | None] = ContextVar("monarch_nb_waiter", default=None)
"""Whose code the context executes."""


def takes_interrupts(frames: Iterable[FrameType]) -> bool:
    """Return whether an exception may be raised in a thread: in user code and in the libraries that it calls, not in
    the middle of what this package does, but where that waits.

    Args:
        frames: the thread's, innermost first.
    """
    for frame in frames:
        code = frame.f_code
        if interrupting.is_wait(code):
            return True
        if not is_standard(code.co_filename):
            return not code.co_filename.startswith(PACKAGE) or code.co_filename == streams.__file__
    return False


def install() -> None:
    """Replace them in this process."""
    patched: Any = threading
    time.sleep = _sleep
    patched._allocate_lock = _lock_for_condition
    patched.Thread.join = _join
    popen: Any = subprocess.Popen
    popen.wait = _wait


def _waiter() -> Waiter | None:
    """Return whose wait may be ended that is about to begin in the caller's caller."""
    waiter = current.get()
    if waiter is None or not waiter.is_here() or not takes_interrupts(outwards(sys._getframe(2))):
        return None
    return waiter


def _sleep(seconds: Any, /) -> None:
    waiter = _waiter()
    if waiter is not None and isinstance(seconds, (int, float)) and seconds > 0:
        lock = allocate_lock()
        lock.acquire()
        waiter.wait(lock, min(seconds, threading.TIMEOUT_MAX))
    else:
        _plain_sleep(seconds)  # which tells what is wrong with it


class _ConditionLock:
    """What `Condition.wait` makes, acquires, and acquires again until `notify` releases it."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter, self._lock = waiter, allocate_lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        return blocking and self._waiter.wait(self._lock, timeout)


def _lock_for_condition() -> Any:
    waiter = _waiter()
    return allocate_lock() if waiter is None else _ConditionLock(waiter)


def _join(self: threading.Thread, timeout: float | None = None) -> None:
    """An exception in the middle of Python's own, before 3.13, takes the thread for ended: here none comes there."""
    waiter = _waiter()
    if waiter is None:
        return _plain_join(self, timeout)
    deadline = time.monotonic() + (_LONG_S if timeout is None else timeout)
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        _plain_join(self, min(left_s, _SLICE_S))
        waiter.check()
        if left_s <= _SLICE_S or not self.is_alive():
            return None


@interrupting.waits
def _wait(self: subprocess.Popen[Any], timeout: float | None = None) -> int:
    """With a timeout it looks again and again, and sleeps in between."""
    return _plain_wait(self, _LONG_S if timeout is None and _waiter() is not None else timeout)


_UNSEEN_AFTER_S = cadence(1.0)
"""C code that no interrupt reaches on an actor's thread may be any I/O; if it lasts, it is taken for a collective."""
_REMEMBERED_RUNS = 256
_poking = threading.Lock()
"""Held while something is raised in a thread, and while one takes care that nothing more is."""


class EndpointActivity(Activity, Waiter):
    """An endpoint that an actor executes.

    Args:
        execution: what the engine knows of it.
        run_id: of the run of calls, on this mesh, in whose name it is; empty when it is in none.
        entry: the engine's frame that calls it.
    """

    def __init__(self, execution: Execution, run_id: str, entry: FrameType) -> None:
        super().__init__(
            run_id=run_id,
            thread=execution.thread,
            started_s=execution.started_s,
            task=execution.task,
        )
        self.execution = execution
        self.leave: Callable[[], None] = lambda: None
        self._entry: FrameType | None = entry
        self._was_hit = False

    @property
    def title(self) -> str:
        """What people call it."""
        kind = self.execution.class_name.rpartition(".")[2]
        return f"{self.execution.actor} ({kind}.{self.execution.endpoint})"

    def frames(self) -> list[FrameType]:
        """Return its frames, innermost first, also while it is suspended."""
        frames = self._frames_on_thread()
        if frames is None and self.task is not None:
            frames = _up_to(awaited_frames(self.task.get_coro()), self._entry)
        return frames or []

    def frame(self) -> FrameType | None:
        frames = self._frames_on_thread()
        return frames[0] if frames else None

    def may_wait_unseen(self) -> bool:
        return not self.delivered and self.frame() is not None and self.waited_s() >= _UNSEEN_AFTER_S

    def is_here(self) -> bool:
        return self._entry is not None and self.thread == threading.get_ident()

    def check(self) -> None:
        if self.is_due:
            raise self.take_due()

    def poke(self) -> None:
        with _poking:
            if self.wake():
                return
            frames = self._frames_on_thread()
            if frames and takes_interrupts(frames):
                self._was_hit = True
                raise_in_thread(self.thread, self._delivery())

    def close(self) -> None:
        """Have nothing raised from now on. On its thread."""
        with _poking:
            self._entry = None
            if self._was_hit:
                raise_in_thread(self.thread, None)

    def shown(self, error: BaseException) -> BaseException:
        """Return `error`, or what tells better what became of it."""
        if self.was_ended_by(error) and not isinstance(error, asyncio.CancelledError):  # the loop's own is left to it
            return self.error()
        return failures.readable(error)

    def _delivery(self) -> type[BaseException]:
        """Return a class for `raise_in_thread`, which takes no exception but makes one: that notes its delivery."""
        kind = RunInterrupted if self.abort is None or self.abort_delivered else ProcessGroupAborted
        return type(kind.__name__, (kind,), {"__new__": lambda _: self.take_due()})

    def _frames_on_thread(self) -> list[FrameType] | None:
        """Return the frames of its thread inwards of its entry, innermost first; None while it is not executed."""
        entry = self._entry
        return None if entry is None else _up_to(outwards(sys._current_frames().get(self.thread)), entry)


class Executions:
    """What actors of this rank execute now.

    Args:
        activities: all that executes user code.
        user_code: knows the user's frames.
        mesh_id: this rank's.
        outputs: where endpoints print.
        debugger: of this rank.
        keeper: counts the steps of endpoints that train.
    """

    def __init__(
        self,
        activities: Activities,
        user_code: UserCode,
        mesh_id: str,
        outputs: streams.CallOutputs,
        debugger: Debugger,
        keeper: Keeper,
    ) -> None:
        self._activities, self._user_code, self._keeper = activities, user_code, keeper
        self._mesh_id, self._outputs, self._debugger = mesh_id, outputs, debugger
        self._interrupted: deque[str] = deque(maxlen=_REMEMBERED_RUNS)
        self._installing = threading.Lock()
        self._is_installed = False

    def __iter__(self) -> Iterator[EndpointActivity]:
        return (each for each in self._activities if isinstance(each, EndpointActivity))

    def of_run(self, run_id: str) -> list[EndpointActivity]:
        """Return what is executed in the name of a run; with an empty id all."""
        return [each for each in self if not run_id or _is_called_by(each.execution, run_id)]

    def executing(self, execution: Execution) -> _Executing:
        """Return what `Outside.executing` is."""
        if not self._is_installed:
            with self._installing:
                if not self._is_installed:
                    install()
                    self._is_installed = True
        return _Executing(self, execution)

    def request(self, run_id: str) -> bool:
        """Ask that all be interrupted that is executed in the name of a run (an empty id: whatever is), now or when its
        turn comes; return whether something is. On the control thread."""
        if run_id:
            self._interrupted.append(run_id)
        found = self.of_run(run_id)
        for each in found:
            each.request()
            each.execution.interrupt()
        self.press()
        return bool(found)

    def interrupt(self, execution: Execution) -> None:
        """Ask that an execution be interrupted, now or when it begins; the control thread is to `press` then. From any
        thread."""
        execution.interrupt()
        for each in self:
            if each.execution is execution:
                each.request()

    def press(self) -> bool:
        """Do what interrupts and aborts need now; return whether it must be called again. On the control thread."""
        again = False
        for each in self:
            if each.execution.is_over:  # its end was hit itself
                self._activities.end(each)
                continue
            if each.requested_at is None and not each.is_due:
                continue
            again = True
            if (
                not each.delivered
                and each.requested_at is not None
                and each.task is not None
                and each.task.cancelling()
            ):
                each.deliver()
            if each.requested_at is not None and each.waited_s() >= PRESS_INTERVAL_S:
                self._activities.free_if_hung(each)
            if each.is_due:
                each.poke()
        return again

    def begin(self, execution: Execution, entry: FrameType) -> tuple[EndpointActivity, Token[streams.RunOutput]]:
        """An endpoint begins. On its thread."""
        run_id, number, _ = execution.runs.get(self._mesh_id, ("", 0, 0))
        if number:
            forming.begin_run(number)
        cells = streams.newest_output()
        output = cells if number == cells.number else self._outputs.of(number) if number else None
        if output is not None and output is not cells:
            output.run_id = run_id
        self._debugger.release_error(execution.uid)
        token = streams.enter_output(output)
        activity = EndpointActivity(execution, run_id, entry)
        # First: a save, for which this may wait, needs that nothing computes.
        is_interrupted = partial(self.is_interrupted, execution)
        activity.leave = self._keeper.begin_endpoint(number, execution.uid, execution.actor, is_interrupted)
        self._activities.begin(activity)
        return activity, token

    def users_part(self, trace: TracebackType | None) -> TracebackType | None:
        """Return a traceback up to the innermost line of user code: ranks are freed at different depths."""
        return self._user_code.trim(trace, only_users=True)

    def keep_error(self, execution: Execution, error: BaseException, trace: TracebackType | None) -> None:
        """Keep what an endpoint has raised for who wants to look at it."""
        if trace is not None and isinstance(error, Exception):
            self._debugger.keep_error(execution, trace)

    def is_interrupted(self, execution: Execution) -> bool:
        """Return whether its interrupt was faster."""
        return execution.interrupted or any(_is_called_by(execution, run_id) for run_id in self._interrupted.copy())

    def end(self, activity: EndpointActivity, token: Token[streams.RunOutput]) -> None:
        """It has ended. On its thread."""
        activity.leave()
        self._debugger.code_ended()
        streams.leave_output(token)
        self._activities.end(activity)
        self._activities.forget_groups(activity)


class _Executing:
    """Entered around an endpoint."""

    __slots__ = ("_activity", "_execution", "_executions", "_output", "_waiter")

    def __init__(self, executions: Executions, execution: Execution) -> None:
        self._executions, self._execution = executions, execution

    def __enter__(self) -> None:
        execution = self._execution
        self._activity, self._output = self._executions.begin(execution, sys._getframe(1))
        self._waiter = current.set(self._activity)
        if self._executions.is_interrupted(execution):
            execution.interrupted = True
            self._activity.request()
            error = self._activity.take_due() if execution.task is None else asyncio.CancelledError()
            self._close()
            self._end()
            raise error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        shown = self._activity.shown(error) if error is not None else None
        if error is not None:
            self._executions.keep_error(self._execution, error, trace)
        self._end()
        if shown is not None and shown is not error:
            raise shown.with_traceback(self._executions.users_part(trace)) from None

    def _close(self) -> None:
        """Have nothing raised from now on; what is raised meanwhile comes too late."""
        while True:
            try:
                self._activity.close()
            except (RunInterrupted, ProcessGroupAborted):
                continue
            return

    def _end(self) -> None:
        current.reset(self._waiter)
        self._executions.end(self._activity, self._output)


def _is_called_by(execution: Execution, run_id: str) -> bool:
    return any(run_id == each for each, *_ in execution.runs.values())


def _up_to(frames: Iterator[FrameType] | list[FrameType], entry: FrameType | None) -> list[FrameType] | None:
    inner: list[FrameType] = []
    for frame in frames:
        if frame is entry:
            return inner
        inner.append(frame)
    return None
