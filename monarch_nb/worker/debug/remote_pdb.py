"""A pdb for the user's code in a rank: it shows and steps through the user's frames alone, and reads a conversation."""

import bdb
import cmd
import code
import codeop
import ctypes
import linecache
import os
import pdb
import sys
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opname
from types import FrameType, TracebackType
from typing import Any

from monarch_nb.ground.pdb_lines import COMMANDS, is_command
from monarch_nb.proto.run_pb2 import DebugCommand, Stop
from monarch_nb.worker.debug.conversation import Conversation, State, Told
from monarch_nb.worker.shell import streams
from monarch_nb.worker.text import encodable
from monarch_nb.worker.user_code import UserCode

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
