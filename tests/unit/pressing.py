"""Ctrl-C at a chosen bytecode instruction."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


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
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        except KeyboardInterrupt as interrupt:
            return interrupt
        finally:
            sys.settrace(before)
        return None

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not self.came:
            self._left -= 1
            if self._left == 0:
                self.came = True
                handler: Any = signal.getsignal(signal.SIGINT)
                handler(signal.SIGINT, frame)
        return self._trace
