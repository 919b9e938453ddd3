"""An event that threads can wait for which Ctrl-C interrupts. Standard library only."""

from __future__ import annotations

import contextlib
import math
import time
from _thread import LockType, allocate_lock

from monarch_nb.ground import interrupting

LOOK_S = 0.2
"""So often who waits looks whether Ctrl-C came: a signal that comes just before the thread sleeps does not wake it."""


class Flag:
    """Set on one thread, waited for on others. Unlike a threading.Event it can be waited for by a thread that Ctrl-C
    interrupts: in an Event that can leave a lock locked, and then `set` hangs, here the whole background loop.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._sleepers: list[LockType] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits."""
        self._is_set = True
        for sleeper in self._sleepers.copy():
            with contextlib.suppress(RuntimeError):  # it was woken before
                sleeper.release()

    def clear(self) -> None:
        """Unset it: who was woken returns all the same."""
        self._is_set = False

    @interrupting.waits
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; return whether it was."""
        held_back = interrupting.held_back()
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        sleeper = allocate_lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        try:
            if self._is_set:  # looked at only now: who sets it from here on wakes this sleeper
                return True
            while True:
                while held_back is not None and held_back.is_pressed:
                    held_back.raise_now()
                left_s = max(0.0, until_s - time.monotonic())
                if sleeper.acquire(timeout=min(left_s, LOOK_S)):
                    return True
                if left_s <= LOOK_S:
                    return self._is_set
        finally:
            with contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)
