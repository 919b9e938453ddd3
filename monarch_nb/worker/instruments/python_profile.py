"""The stacks of the main thread while a run goes on, looked at 100 times a second."""

from __future__ import annotations

import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from monarch_nb.ground.printing import encodable
from monarch_nb.worker.control.sampler import switching_within
from monarch_nb.worker.runs.instruments import running
from monarch_nb.worker.user_code import PACKAGE, UserCode, outwards

MOST_NODES = 20_000
MOST_DEPTH = 200


class Frame(NamedTuple):
    """A frame of a stack, as people read it.

    Attributes:
        line: of the user's code, the line that is executed; 0 elsewhere: all lines of the function are one.
    """

    function: str
    file: str
    line: int


class StackCounts:
    """Counts stacks. What has no place in the tree any more counts for the frame that called it.

    Example:
        >>> counts = StackCounts()
        >>> counts.add([Frame("<module>", "train.py", 3), Frame("step", "train.py", 9)], 0.5)
        >>> told = counts.told()
        >>> told["parents"], told["own_s"]
        ([-1, 0], [0.0, 0.5])
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._frame_of: list[int] = []
        self._own_s: list[float] = []
        self._looks, self._is_cut = 0, False

    def add(self, stack: Iterable[Frame], seconds: float) -> None:
        """Count a stack that was there for some time.

        Args:
            stack: outermost frame first; not empty.
        """
        self._looks += 1
        node = -1
        for depth, frame in enumerate(stack):
            child = self._children.get((node, self._frames.get(frame, -1)))
            if child is None:
                if depth >= MOST_DEPTH or (len(self._parents) >= MOST_NODES and node >= 0):
                    self._is_cut = True
                    break
                child = self._grow(node, frame)
            node = child
        self._own_s[node] += seconds

    def _grow(self, node: int, frame: Frame) -> int:
        """Return a new node for a frame that another one called."""
        number = self._frames.setdefault(frame, len(self._frames))
        child = self._children[node, number] = len(self._parents)
        self._parents.append(node)
        self._frame_of.append(number)
        self._own_s.append(0.0)
        return child

    def told(self) -> dict[str, Any]:
        """Return all as plain data: nodes as lists, each after its parent."""
        return {
            "looks": self._looks,
            "is_cut": self._is_cut,
            "frames": [tuple(frame) for frame in self._frames],
            "parents": self._parents,
            "frame_of": self._frame_of,
            "own_s": self._own_s,
        }


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
