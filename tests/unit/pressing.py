"""Ctrl-C at a chosen bytecode instruction."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

TRACES_MISS_INSTRUCTIONS_SINCE_PYTHON_3_12 = sys.version_info >= (3, 12)


class Press:
    """One press of Ctrl-C in the main thread, at the `step`-th instruction of what is traced.

    Attributes:
        came: whether there were that many instructions.
    """

    def __init__(self, step: int, files: tuple[str, ...] = ("",)) -> None:
        """Args: files: ends of the names of the files whose instructions count; all by default."""
        self._left, self._files = step, files
        self.came = False

    def during(self, work: Callable[[], object]) -> BaseException | None:
        """Do `work`; return the KeyboardInterrupt that it raised, or None."""
        try:
            work_telling(work, self._told, self._files)
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None

    def _told(self, frame: FrameType) -> None:
        if self.came:
            return
        self._left -= 1
        if self._left == 0:
            self.came = True
            handler: Any = signal.getsignal(signal.SIGINT)
            handler(signal.SIGINT, frame)


def work_telling(work: Callable[[], object], told: Callable[[FrameType], None], files: tuple[str, ...] = ("",)) -> None:
    """Do `work`, and call `told` before each bytecode instruction of it that this thread executes in these files; what
    `told` raises is raised there."""
    if TRACES_MISS_INSTRUCTIONS_SINCE_PYTHON_3_12:
        _work_monitored(work, told, files)
    else:
        _work_traced(work, told, files)


def _work_monitored(work: Callable[[], object], told: Callable[[FrameType], None], files: tuple[str, ...]) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool, thread = monitoring.DEBUGGER_ID, threading.get_ident()

    def instruction(code: CodeType, _: int) -> object:
        if not code.co_filename.endswith(files) or code.co_filename == __file__:
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            told(sys._getframe(1))
        return None

    monitoring.use_tool_id(tool, "pressing")
    monitoring.restart_events()  # what another test had disabled
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, instruction)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        work()
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)


def _work_traced(work: Callable[[], object], told: Callable[[FrameType], None], files: tuple[str, ...]) -> None:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            told(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
