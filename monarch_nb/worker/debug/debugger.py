"""`breakpoint()` in a rank: which threads have stopped, and who answers them."""

import itertools
import json
import os
import pdb
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.outside import Execution
from monarch_nb.errors import BreakpointError
from monarch_nb.proto.run_pb2 import (
    ON_BREAKPOINT_ERROR,
    ON_BREAKPOINT_GO_ON,
    ON_BREAKPOINT_UNSPECIFIED,
    DebugAnswer,
    DebugCommand,
    Display,
    Stop,
)
from monarch_nb.worker.debug.rank_pdb import Answer, Conversation, RankPdb
from monarch_nb.worker.shell import streams
from monarch_nb.worker.user_code import UserCode, is_ours, outwards

CELL = "cell"
"""What a break in a cell (or a script) has in place of an actor's name."""


class Debugger:
    """Every stop of this rank. One pdb for each thread that has hit a breakpoint, until the code that hit it is over.

    Args:
        user_code: knows the user's frames.
        entries: the code of the functions that call user code: frames below are shown.
        wake: called when an answer is due sooner than the control thread knows.
    """

    def __init__(
        self,
        user_code: UserCode,
        entries: set[CodeType],
        wake: Callable[[], None],
    ) -> None:
        self._user_code, self._entries, self._wake = user_code, entries, wake
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._debuggers: dict[int, RankPdb] = {}  # by thread
        self._post_mortem: Conversation | None = None
        self._endpoint_error: tuple[Execution, TracebackType] | None = None
        self._has_run_failed = False

    def install(self) -> None:
        """Take Python's hook, and pdb's functions that need no object."""
        sys.breakpointhook = self._on_breakpoint
        pdb.set_trace = self._set_trace
        pdb.post_mortem = self._stop_after
        pdb.pm = self._stop_after_last
        _installed.append(self)
        os.register_at_fork(after_in_child=self._forget_all)

    # ---- in the user's code ----

    def _on_breakpoint(self, *arguments: Any, header: str = "", **options: Any) -> Any:
        """What `breakpoint()` calls."""
        __tracebackhide__ = True
        if os.environ.get("PYTHONBREAKPOINT"):  # the user's own, or 0: none
            return sys.__breakpointhook__(*arguments, **options)
        self._stop_at(sys._getframe(1), header)
        return None

    def _set_trace(self, *, header: str | None = None, **_: Any) -> None:
        """In place of `pdb.set_trace`."""
        __tracebackhide__ = True
        self._stop_at(sys._getframe(1), header or "")

    def _stop_after(self, t: TracebackType | None = None) -> None:
        """In place of `pdb.post_mortem`."""
        error = sys.exception()
        trace = t or (error.__traceback__ if error is not None else None)
        if trace is None:
            raise ValueError("a valid traceback must be passed if no exception is being handled")
        frame = sys._getframe(1)
        if self._may_stop(self._user_code.line(frame.f_code.co_filename, frame.f_lineno)):
            self._debugger().stop_after(trace)

    def _stop_after_last(self) -> None:
        """In place of `pdb.pm`."""
        trace = getattr(sys, "last_traceback", None)
        if trace is None:
            raise ValueError("no run of this rank has failed: there is nothing to look at")
        self._stop_after(trace)

    def _forget_all(self) -> None:
        """In a child that the user forks: nobody answers there."""
        sys.settrace(None)
        self._debuggers.clear()
        self._post_mortem = None

    def _stop_at(self, frame: FrameType, header: str) -> None:
        __tracebackhide__ = True
        place = self._user_code.line(frame.f_code.co_filename, frame.f_lineno)
        if self._may_stop(place):
            self._debugger().stop_at(frame, header)

    def can_stop(self) -> bool:
        """Return whether somebody can answer where the calling thread is now; say nothing when nobody can."""
        nobody = streams.is_captured() or os.getpid() != self._pid
        return not nobody and _policy(streams.current_output()) == ON_BREAKPOINT_UNSPECIFIED

    def stop_at_users_line(self, header: str) -> None:
        """Stop at the innermost line of the user's own code, as a `breakpoint()` there would."""
        __tracebackhide__ = True
        frame = next((each for each in outwards(sys._getframe(1)) if self._user_code.owns(each)), None)
        if frame is not None:
            self._stop_at(frame, header)

    def _may_stop(self, place: str) -> bool:
        """Return whether somebody can answer here; say so when nobody can.

        Raises:
            BreakpointError: the run is not to pass breakpoints.
        """
        __tracebackhide__ = True
        output = streams.current_output()
        if streams.is_captured():  # in what a stopped thread executes for its debugger
            sys.stdout.write(f"breakpoint() at {place} was passed: the debugger executes it\n")
            return False
        policy = _policy(output)
        if policy == ON_BREAKPOINT_ERROR:
            raise BreakpointError(f"breakpoint() at {place}: the run fails there (--on-breakpoint=error)")
        is_child = os.getpid() != self._pid
        if is_child or policy == ON_BREAKPOINT_GO_ON:
            if place not in output.passed:
                output.passed.add(place)
                why = "a process that a rank forked has no debugger" if is_child else "nobody can answer here"
                sys.stderr.write(f"breakpoint() at {place} was passed: {why}\n")
            return False
        return True

    def _debugger(self) -> RankPdb:
        """Return the calling thread's."""
        thread = threading.get_ident()
        known = self._debuggers.get(thread)
        if known is None or known.talk.is_over:
            known = self._debuggers[thread] = self._make(Conversation(next(self._numbers), self._wake))
        execution = engine.executing()
        known.talk.at.actor = execution.actor if execution is not None else CELL
        known.talk.at.run_id = streams.current_output().run_id
        return known

    def _make(self, talk: Conversation) -> RankPdb:
        output: list[streams.RunOutput] = []

        def on_stop(stops: bool) -> None:
            if stops:
                output.append(streams.current_output())
            told = json.dumps({"stop": talk.number, "on": stops})
            output[0].display(Display(kind=Display.KIND_STOPPED, content_json=told))
            if not stops:
                output.clear()

        return RankPdb(talk, self._user_code, self._is_shown, on_stop)

    def code_ended(self) -> None:
        """The code that the calling thread executed is over."""
        known = self._debuggers.pop(threading.get_ident(), None)
        if known is not None:
            known.end()

    def run_failed(self) -> None:
        """The last run has failed: its error, `sys.last_traceback`, can be looked at until another run begins."""
        self._has_run_failed = True

    def keep_error(self, execution: Execution, trace: TracebackType) -> None:
        """An endpoint has failed: its error can be looked at."""
        self._endpoint_error = execution, trace

    def release_error(self, uid: str = "") -> None:
        """The actor whose endpoint has failed executes the next one, or a run begins: let go of what the error keeps
        alive."""
        if self._endpoint_error is not None and uid in ("", self._endpoint_error[0].uid):
            self._endpoint_error = None
        if not uid:
            self._has_run_failed = False

    def _is_shown(self, frame: FrameType) -> bool:
        """Return whether a frame is the user's, or of what the user's code calls."""
        for each in outwards(frame):
            if self._user_code.owns(each):
                return True
            if each.f_code in self._entries:
                return each is not frame
            if is_ours(each):
                return False
        return threading.current_thread() is not threading.main_thread()  # at whose bottom is the template

    # ---- on the control thread ----

    @property
    def looks_at_error(self) -> bool:
        """Whether somebody looks at the last error: its frames must stay as they are."""
        return self._post_mortem is not None and not self._post_mortem.is_over

    def stops(self) -> list[Stop]:
        """Return the threads that have stopped."""
        return [talk.stop_now() for talk in self._talks() if talk.is_stopped]

    def command(self, command: DebugCommand, answer: Answer) -> None:
        """Pass a command on; `answer` is called from any thread, now or later."""
        if command.action == DebugCommand.ACTION_POST_MORTEM:
            self._enter_last_error(command, answer)
            return
        talk = next((talk for talk in self._talks() if talk.number == command.stop), None)
        if talk is None:
            answer(DebugAnswer(state=DebugAnswer.STATE_GONE))
        else:
            talk.take(command, answer)

    def next_deadline(self) -> float | None:
        """When `expire` must be called."""
        deadlines = [talk.next_deadline() for talk in self._talks()]
        return min((each for each in deadlines if each is not None), default=None)

    def expire(self, now: float) -> None:
        """Answer the commands whose time is over."""
        for talk in self._talks():
            talk.expire(now)

    def _talks(self) -> list[Conversation]:
        talks = [known.talk for known in list(self._debuggers.values())]
        return talks if self._post_mortem is None else [*talks, self._post_mortem]

    def _enter_last_error(self, command: DebugCommand, answer: Answer) -> None:
        actor, trace = self._last_error()
        if not self.looks_at_error and trace is None:
            answer(DebugAnswer(state=DebugAnswer.STATE_GONE))
            return
        if not self.looks_at_error and trace is not None:
            started = threading.Event()
            thread = threading.Thread(
                target=self._look_at, args=(actor, trace, started), name="monarch_nb-post-mortem", daemon=True
            )
            thread.start()
            started.wait()
        assert self._post_mortem is not None
        question = DebugCommand(action=DebugCommand.ACTION_LINE, wait_s=command.wait_s)
        self._post_mortem.take(question, answer)

    def _last_error(self) -> tuple[str, TracebackType | None]:
        """Return whose the newest error is, and its traceback."""
        failed = self._endpoint_error
        if failed is not None:
            return failed[0].actor, failed[1]
        return CELL, getattr(sys, "last_traceback", None) if self._has_run_failed else None

    def _look_at(self, actor: str, trace: TracebackType, started: threading.Event) -> None:
        """A thread of its own: cells can run meanwhile."""
        talk = self._post_mortem = Conversation(next(self._numbers), self._wake)
        talk.at.actor = actor
        talk.stop()
        started.set()
        RankPdb(talk, self._user_code, self._is_shown, lambda _: None).stop_after(trace)


_installed: list[Debugger] = []
"""That of this rank."""


def can_stop() -> bool:
    """Return whether a thread of this process can stop now, and somebody answers it."""
    return bool(_installed) and _installed[-1].can_stop()


def stop_at_users_line(header: str) -> None:
    """Stop the calling thread where the user's code has called what calls this.

    Args:
        header: is said at the prompt of the rank.

    Raises:
        BdbQuit: it was told to quit.
    """
    __tracebackhide__ = True
    if _installed:
        _installed[-1].stop_at_users_line(header)


def _policy(output: streams.RunOutput) -> int:
    """Return what `breakpoint()` does here: as who called the endpoint said, whichever mesh they called, or the run."""
    execution = engine.executing()
    if execution is None:
        return output.on_breakpoint
    return max((policy for _, _, policy in execution.runs.values()), default=ON_BREAKPOINT_UNSPECIFIED)
