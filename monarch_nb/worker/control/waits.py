"""Waits of Python's own that an interrupt ends on the threads of actors, as SIGINT does on the main thread.

An exception for another thread waits until that thread comes back to Python: one that sleeps in C is not woken. So
`time.sleep`, the wait of a Condition (and with it those for events, queues, semaphores, barriers and futures),
`Thread.join` and `Popen.wait` are others on these threads. What is not: a lock that is acquired itself, and I/O.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Iterable
from contextvars import ContextVar
from types import FrameType
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.ground import interrupting
from monarch_nb.worker.shell import streams
from monarch_nb.worker.user_code import PACKAGE, is_standard, outwards

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
