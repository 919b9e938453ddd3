"""A pdb for the user's code in a rank, and what is said between it and whoever answers it, by way of the control
thread.

It shows and steps through the user's frames alone. The control thread never waits: a command is answered when pdb asks
for the next line, or when its time is over.
"""

import bdb
import cmd
import code
import codeop
import ctypes
import linecache
import math
import os
import pdb
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from enum import Enum, auto
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opname
from types import FrameType, TracebackType
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.ground import interrupting
from monarch_nb.ground.pdb_lines import COMMANDS, is_command
from monarch_nb.ground.printing import encodable
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand, Stop
from monarch_nb.worker.shell import streams
from monarch_nb.worker.user_code import UserCode

Answer = Callable[[DebugAnswer], None]

LOOK_S = cadence(0.1)
"""So often a thread that waits for a line looks whether it was interrupted: in other threads than the main one an
exception that is sent to them does not end a wait."""
GOES_ON_S = cadence(0.3)
"""Code that was told to continue has so long to come to the next breakpoint before it is said to be gone."""
MAX_TEXT_CHARACTERS = 200_000
_PROMPT_CHARACTERS = 16
NOT_DONE = "not executed: the line before is not done yet\n"


class State(Enum):
    """What the thread does."""

    ASKING = auto()
    RUNNING = auto()
    """It executes what it was told to; pdb will ask again."""
    FREE = auto()
    """It goes on; pdb asks again only at the next breakpoint."""
    OVER = auto()


class Told(BaseException):
    """Raised where pdb waits for a line, when it is told what no line says: to go on, or to quit."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action = action


class Conversation:
    """The stdin and stdout of a pdb.

    Args:
        number: of the stop.
        wake: called when an answer is due sooner than the control thread knows.

    Attributes:
        at: where the thread is.
        is_stopped: whether it is listed: it waits, or executes only what it was told to.
    """

    def __init__(self, number: int, wake: Callable[[], None]) -> None:
        self.number = number
        self.at = Stop(stop=number)
        self._wake = wake
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._sleeper = allocate_lock()
        self._sleeper.acquire()
        self._order: DebugCommand | None = None
        self._early: DebugCommand | None = None  # came between a stop and the first prompt
        self._executes = False
        self._state = State.FREE
        self._text: list[str] = []
        self._characters = 0
        self._last_text = ""
        self._prompt = ""
        self._stopped_at = time.monotonic()
        self._waiting: list[tuple[float, Answer]] = []

    # ---- pdb's side, on its thread ----

    def write(self, text: str) -> int:
        """Say something."""
        with self._lock:
            self._characters += len(text)
            if self._characters <= MAX_TEXT_CHARACTERS or len(text) <= _PROMPT_CHARACTERS:
                self._text.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back: whoever asked gets it with the next prompt."""

    @interrupting.waits
    def readline(self) -> str:
        """Ask, and return the line that comes; an interrupt ends the wait.

        Raises:
            Told: something else came.
        """
        self._ask()
        while not self._sleeper.acquire(timeout=LOOK_S):
            pass
        with self._lock:
            order, self._order = self._order, None
        assert order is not None
        if order.action != DebugCommand.ACTION_LINE:
            raise Told(order.action)
        return order.line.rstrip("\n") + "\n"

    def stop(self) -> None:
        """The thread has stopped, and will ask."""
        with self._lock:
            self._stopped_at = time.monotonic()
            self._state = State.RUNNING

    def go_on(self, state: State) -> None:
        """The thread goes on, and pdb asks no more (for now)."""
        by_s = time.monotonic() + GOES_ON_S
        with self._lock:
            self._state = state
            if state is not State.RUNNING:
                self._executes, self._early = False, None
            if state is State.FREE:
                self._waiting = [(min(deadline, by_s), answer) for deadline, answer in self._waiting]
        if state is State.OVER:
            self.expire(math.inf)
        self._wake()

    def _ask(self) -> None:
        with self._lock:
            text, newline, self._prompt = "".join(self._text).rpartition("\n")
            if self._characters > MAX_TEXT_CHARACTERS:
                text += f"\n… {self._characters - len(text):,} characters left out …"
            self._text, self._characters = [text + newline], 0
            self._state, self._executes = State.ASKING, False
            if self._early is not None:
                early, self._early = self._early, None
                self._begin(early)
                return
            waiting, self._waiting = self._waiting, []
            answer_with = self._answer() if waiting else None
        for _, answer in waiting:
            assert answer_with is not None
            answer(answer_with)

    # ---- the other side, on the control thread ----

    @property
    def is_stopped(self) -> bool:
        return self._state in (State.ASKING, State.RUNNING) and self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come of it."""
        return self._state is State.OVER or not self._thread.is_alive()

    def stop_now(self) -> Stop:
        """Return where it is, and for how long."""
        stop = Stop()
        stop.CopyFrom(self.at)
        stop.since_s = time.monotonic() - self._stopped_at
        stop.executes = self._executes
        return stop

    def take(self, command: DebugCommand, answer: Answer) -> None:
        """Pass a command on; `answer` is called when pdb asks again, or when the command's time is over."""
        is_question = command.action == DebugCommand.ACTION_LINE and not command.line
        with self._lock:
            if self._state is State.ASKING and not is_question:
                self._begin(command)
            elif self._state is State.RUNNING and not (self._executes or self._early or is_question):
                self._early = command
            elif self._state is not State.RUNNING:
                answer(self._answer())
                return
            elif (self._executes or self._early) and command.action == DebugCommand.ACTION_LINE and not is_question:
                answer(DebugAnswer(state=DebugAnswer.STATE_RUNNING, text=NOT_DONE, at=self.stop_now()))
                return
            self._waiting.append((time.monotonic() + command.wait_s, answer))

    def _begin(self, command: DebugCommand) -> None:
        """Have pdb do it; the answer is what comes of this alone."""
        self._order, self._state, self._executes = command, State.RUNNING, True
        self._text, self._last_text = [], ""
        self._sleeper.release()

    def next_deadline(self) -> float | None:
        """When `expire` must be called."""
        with self._lock:
            return min((deadline for deadline, _ in self._waiting), default=None)

    def expire(self, now: float) -> None:
        """Answer those whose time is over."""
        with self._lock:
            due = [each for each in self._waiting if each[0] <= now]
            self._waiting = [each for each in self._waiting if each[0] > now]
            answer_with = self._answer() if due else None
        for _, answer in due:
            assert answer_with is not None
            answer(answer_with)

    def _answer(self) -> DebugAnswer:
        """Return what is to be said now; of a thread that waits, at least what it said last."""
        states = {State.ASKING: DebugAnswer.STATE_PROMPT, State.RUNNING: DebugAnswer.STATE_RUNNING}
        state = states.get(self._state, DebugAnswer.STATE_GONE)
        if not self._thread.is_alive():
            state = DebugAnswer.STATE_GONE
        text, self._text = "".join(self._text), []
        self._last_text += text
        is_prompt = state == DebugAnswer.STATE_PROMPT
        return DebugAnswer(
            state=state,
            text=encodable(self._last_text if is_prompt and not text else text),
            at=self.stop_now(),
            prompt=encodable(self._prompt) if is_prompt else "",
        )


_SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_MORE = "...   "
LOCALS_ARE_COPIED_BEFORE_PYTHON_3_13 = sys.version_info < (3, 13)
"""The dictionary of a frame is made anew each time, without what was changed in it. Only frames that are traced are
given the changes, and the one that calls `breakpoint()` is not."""


class RankPdb(pdb.Pdb):
    """The pdb of one thread, from its first breakpoint to the end of the code that hit it.

    Args:
        talk: its stdin and stdout.
        user_code: names files.
        is_shown: tells frames that people want to see from ours and those of what calls their code.
        on_stop: called with True when the thread stops, with False when it goes on.
    """

    def __init__(
        self,
        talk: Conversation,
        user_code: UserCode,
        is_shown: Callable[[FrameType], bool],
        on_stop: Callable[[bool], None],
    ) -> None:
        stream: Any = talk
        super().__init__(completekey="", stdin=stream, stdout=stream, nosigint=True, readrc=False)
        self.identchars = cmd.Cmd.identchars  # from Python 3.13 on pdb takes p(x) for Python, and there is no p
        self.talk = talk
        self.executes = False
        """Whether it executes a command: a breakpoint in there is passed."""
        self._user_code, self._is_shown, self._on_stop = user_code, is_shown, on_stop
        self._is_listed = self._is_post_mortem = False

    # ---- begin and end ----

    def stop_at(self, frame: FrameType, header: str = "") -> None:
        """Stop the calling thread in `frame` now; afterwards trace it, as far as it was told to.

        Raises:
            BdbQuit: it was told to quit.
        """
        self.reset()
        each: FrameType | None = frame
        while each is not None:
            if self._is_shown(each):
                each.f_trace = self.trace_dispatch
            self.botframe = each
            each = each.f_back
        if header:
            self.message(header)
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        if not self._is_free:
            sys.settrace(self.trace_dispatch)

    def stop_after(self, trace: TracebackType) -> None:
        """Stop the calling thread to look at the frames of an exception."""
        self._is_post_mortem = True
        try:
            self.reset()
            self.interaction(None, trace)
        finally:
            self._is_post_mortem = False

    def end(self) -> None:
        """The code that has stopped is over: trace the calling thread no more."""
        sys.settrace(None)
        self.forget()
        self.talk.go_on(State.OVER)
        self._list(False)

    @property
    def _is_free(self) -> bool:
        return self.stopframe is self.botframe and self.stoplineno == -1 and not self.breaks

    def _list(self, stops: bool) -> None:
        if self._is_listed != stops:
            self._is_listed = stops
            self._on_stop(stops)

    # ---- the prompt ----

    def _cmdloop(self) -> None:
        """As pdb's, but Ctrl-C is not caught: it interrupts the code."""
        self._note_place()
        self.talk.stop()
        self._list(True)
        try:
            self.cmdloop()
        except Told as told:
            self.clear_all_breaks()
            if told.action == DebugCommand.ACTION_QUIT:
                self.set_quit()
            else:
                self.set_continue()
        except BaseException:
            self.end()
            raise
        if self.quitting or self._is_post_mortem:
            self.end()
        elif self._is_free:
            self.talk.go_on(State.FREE)
            self._list(False)
        else:
            self.talk.go_on(State.RUNNING)

    def _note_place(self) -> None:
        frame, line_number = self.stack[self.curindex]
        numbers: dict[FrameType, int] = self.tb_lineno  # type: ignore[attr-defined]  # of an exception
        line_number = numbers.get(frame, line_number)
        filename, name = frame.f_code.co_filename, frame.f_code.co_name
        shown = self._user_code.file_name(filename)
        module = os.path.basename(shown).removesuffix(".py")
        stop = Stop(
            stop=self.talk.number,
            actor=self.talk.at.actor,
            function=encodable(module if name == "<module>" else f"{module}.{name}"),
            file=encodable(os.path.basename(shown) if os.path.isabs(shown) else shown),
            line_number=line_number,
            line=encodable(linecache.getline(filename, line_number, frame.f_globals).strip()),
            run_id=self.talk.at.run_id,
            post_mortem=self._is_post_mortem,
        )
        self.talk.at = stop

    def onecmd(self, line: str) -> bool:
        self.executes = True
        try:
            with streams.captured(self.talk.write):
                return bool(super().onecmd(line))
        finally:
            self.executes = False

    def postcmd(self, stop: bool, line: str) -> bool:
        if self.stack:
            self._note_place()
        return bool(super().postcmd(stop, line))

    # ---- what is shown, and where it stops ----

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        shown = [place for place, (frame, _) in enumerate(stack) if self._is_shown(frame) or place == index]
        return [stack[place] for place in shown], shown.index(index)

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        text = super().format_stack_entry(frame_lineno, lprefix)
        filename = self.canonic(frame_lineno[0].f_code.co_filename)
        return text.replace(filename, self._user_code.file_name(filename), 1)

    def stop_here(self, frame: FrameType) -> bool:
        return bool(super().stop_here(frame)) and self._is_shown(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        if not self._is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if not self._is_statement(frame):
            super().user_return(frame, return_value)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        next_trace = super().dispatch_return(frame, arg)
        if self._is_outermost(frame) and not self._is_statement(frame) and not _is_suspended(frame):
            self.end()
            return None
        return next_trace

    def dispatch_exception(self, frame: FrameType, arg: Any) -> Any:
        if issubclass(arg[0], KeyboardInterrupt):  # it ends what was stepped through: pdb would stop there again
            self.end()
            return None
        return super().dispatch_exception(frame, arg)

    def _is_statement(self, frame: FrameType) -> bool:
        """Return whether a frame executes a statement of a cell: the next one has another."""
        return frame.f_code.co_name == "<module>" and self._user_code.is_cell(frame.f_code.co_filename)

    def _is_outermost(self, frame: FrameType) -> bool:
        return self._is_shown(frame) and (frame.f_back is None or not self._is_shown(frame.f_back))

    # ---- commands ----

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        """As pdb's, but `c[0]` or `n = 5` is Python: nobody wants such a line to let the code go on."""
        command, argument, line = super().parseline(line)
        return (None, None, line) if command in COMMANDS and not is_command(line) else (command, argument, line)

    def default(self, line: str) -> None:
        """Execute a statement, which may go on over several lines."""
        source = line.removeprefix("!")
        try:
            while (compiled := codeop.compile_command(source, "<stdin>", "single")) is None:
                self.talk.write(_MORE)
                source += "\n" + self.talk.readline().rstrip("\n")
            exec(compiled, self._frame().f_globals, self._locals())
            self._keep_locals()
        except:  # noqa: E722 -- as pdb
            self._error_exc()

    def _frame(self) -> FrameType:
        assert self.curframe is not None
        return self.curframe

    def _locals(self) -> Any:
        return self.curframe_locals if LOCALS_ARE_COPIED_BEFORE_PYTHON_3_13 else self._frame().f_locals

    def _keep_locals(self) -> None:
        """Give a function's variables the values that they were set to."""
        if LOCALS_ARE_COPIED_BEFORE_PYTHON_3_13:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame()), ctypes.c_int(0))

    def _error_exc(self) -> None:
        if isinstance(sys.exception(), (KeyboardInterrupt, Told)):
            raise  # in the handlers of pdb, which would go on
        super()._error_exc()  # type: ignore[misc]

    def do_interact(self, arg: str) -> None:
        """interact

        Start an interactive interpreter with the names of the current frame; exit() returns to pdb.
        """
        names = {**self._frame().f_globals, **self._locals()}
        console = _Console(names)
        self.message("*interactive*: exit() returns to pdb")
        more = False
        while True:
            self.talk.write("... " if more else ">>> ")
            try:
                more = console.push(self.talk.readline().rstrip("\n"))
            except SystemExit:
                return

    def do_clear(self, arg: str) -> Any:
        """cl(ear) [filename:lineno | bpnumber ...]

        Clear these breakpoints; without any, all.
        """
        if arg:
            return super().do_clear(arg)
        self.clear_all_breaks()
        self.message("all breakpoints cleared")
        return None

    do_cl = do_clear

    def do_run(self, arg: str) -> None:
        """run

        A rank can not be run again from here.
        """
        self.error("a rank can not be run again from its debugger: run the cell again")

    do_restart = do_run


class _Console(code.InteractiveConsole):
    """What `interact` executes; an interrupt is for the code that has stopped."""

    def write(self, data: str) -> None:
        sys.stdout.write(data)

    def showtraceback(self) -> None:
        if isinstance(sys.exception(), (KeyboardInterrupt, Told)):
            raise
        super().showtraceback()


def _is_suspended(frame: FrameType) -> bool:
    """Return whether a frame that "returns" only waits, and will go on."""
    if not frame.f_code.co_flags & _SUSPENDS or frame.f_lasti < 0:
        return False
    return opname[frame.f_code.co_code[frame.f_lasti]] in ("YIELD_VALUE", "SEND")
