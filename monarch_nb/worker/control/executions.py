"""What actors of this rank execute: where it prints, who may interrupt it, where it is.

An endpoint runs on its actor's thread, which no signal reaches. An interrupt of a run of calls cancels what is async;
in other threads it raises KeyboardInterrupt, as SIGINT does on the main thread: again and again until it is delivered,
and only in user code (`waits.takes_interrupts`). It may come late, when the endpoint has just returned: then it is
taken back.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Token
from functools import partial
from types import FrameType, TracebackType
from typing import Protocol

from monarch_nb.actor.engine.outside import Execution
from monarch_nb.config import cadence
from monarch_nb.errors import ProcessGroupAborted
from monarch_nb.worker.control import waits
from monarch_nb.worker.control.activities import PRESS_INTERVAL_S, Activities, Activity
from monarch_nb.worker.control.interrupts import raise_in_thread
from monarch_nb.worker.debug.debugger import Debugger
from monarch_nb.worker.groups import forming
from monarch_nb.worker.shell import failures, streams
from monarch_nb.worker.shell.failures import RunInterrupted
from monarch_nb.worker.user_code import UserCode, awaited_frames, outwards

_UNSEEN_AFTER_S = cadence(1.0)
"""C code that no interrupt reaches on an actor's thread may be any I/O; if it lasts, it is taken for a collective."""
_REMEMBERED_RUNS = 256
_poking = threading.Lock()
"""Held while something is raised in a thread, and while one takes care that nothing more is."""


class EndpointActivity(Activity, waits.Waiter):
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
            if frames and waits.takes_interrupts(frames):
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


class Steps(Protocol):
    """Counts the steps of a training: it is told which threads execute endpoints."""

    def begin_endpoint(self, number: int, actor: str, is_interrupted: Callable[[], bool]) -> None: ...

    def end_endpoint(self) -> None: ...


class Executions:
    """What actors of this rank execute now.

    Args:
        activities: all that executes user code.
        user_code: knows the user's frames.
        mesh_id: this rank's.
        outputs: where endpoints print.
        debugger: of this rank.
        steps: counts those of endpoints that train.
    """

    def __init__(
        self,
        activities: Activities,
        user_code: UserCode,
        mesh_id: str,
        outputs: streams.CallOutputs,
        debugger: Debugger,
        steps: Steps,
    ) -> None:
        self._activities, self._user_code, self._steps = activities, user_code, steps
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
                    waits.install()
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
        self._steps.begin_endpoint(number, execution.actor, partial(self.is_interrupted, execution))
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
        self._steps.end_endpoint()
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
        self._waiter = waits.current.set(self._activity)
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
        waits.current.reset(self._waiter)
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
