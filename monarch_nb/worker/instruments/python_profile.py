"""The stacks of the main thread while a run goes on, looked at 100 times a second."""

from __future__ import annotations

import sys
import threading
import time
from _thread import allocate_lock
from types import CodeType, FrameType
from typing import Any

from monarch_nb.worker.control.switching import switching_within
from monarch_nb.worker.instruments.stack_counts import Frame, StackCounts
from monarch_nb.worker.runs.instruments import running
from monarch_nb.worker.text import encodable
from monarch_nb.worker.user_code import PACKAGE, UserCode, outwards

RATE_HZ = 100
_SWITCH_S = 0.0002
_MOST_FRAMES = 50_000
_IN_LOOP = Frame("(event loop)", "", 0)
"""The cell awaits something, or has not begun."""


class PythonProfile:
    """See the Instrument protocol in monarch_nb/worker/runs/instruments.py.

    Args:
        hz: how many looks a second.
    """

    def __init__(self, hz: float = RATE_HZ) -> None:
        self._interval_s = 1 / hz
        self._user_code: UserCode = running().user_code
        self._target = threading.get_ident()
        self._counts = StackCounts()
        self._frames: dict[tuple[CodeType, int], Frame | None] = {}
        self._owned: dict[CodeType, bool] = {}
        self._pause = allocate_lock()
        self._thread = threading.Thread(target=self._look_on, name="monarch_nb-python-profile", daemon=True)

    def begin(self) -> None:
        self._pause.acquire()
        self._thread.start()

    def end(self) -> dict[str, Any]:
        self._pause.release()
        self._thread.join()
        return self._counts.told()

    def _look_on(self) -> None:
        """Look until the end; a look stands for the time since the last one."""
        before_s = time.perf_counter()
        with switching_within(_SWITCH_S):
            while not self._pause.acquire(timeout=self._interval_s):
                stack = self._stack()
                now_s = time.perf_counter()
                self._counts.add(stack, now_s - before_s)
                before_s = now_s

    def _stack(self) -> list[Frame]:
        """Return the main thread's stack from the user's outermost frame on. It keeps no frame, which keeps values."""
        stack: list[Frame] = []
        users = 0
        for frame in outwards(sys._current_frames().get(self._target)):
            is_users = self._owns(frame)
            shown = self._shown(frame, is_users=is_users)
            if shown is not None:
                stack.append(shown)
            if is_users:
                users = len(stack)
        return stack[:users][::-1] or [_IN_LOOP]

    def _owns(self, frame: FrameType) -> bool:
        owned = self._owned.get(frame.f_code)
        if owned is None:
            owned = self._owned[frame.f_code] = self._user_code.owns(frame)
        return owned

    def _shown(self, frame: FrameType, *, is_users: bool) -> Frame | None:
        """Return a frame as people read it; None for those of this package."""
        code = frame.f_code
        key = (code, (frame.f_lineno or code.co_firstlineno) if is_users else 0)
        if key not in self._frames:
            if len(self._frames) >= _MOST_FRAMES:  # code that makes code
                self._frames.clear()
                self._owned.clear()
            is_ours = code.co_filename.startswith(PACKAGE)
            name = encodable(self._user_code.file_name(code.co_filename))
            self._frames[key] = None if is_ours else Frame(encodable(code.co_name), name, key[1])
        return self._frames[key]
