"""The one bridge between callers' threads and the asyncio loop on which all work on channels happens."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from monarch_nb.ground import interrupting

T = TypeVar("T")

LOOK_S = 0.2
"""So often who waits looks whether Ctrl-C came: a signal that comes just before the thread sleeps does not wake it."""
CLEAN_UP_S = 10.0
"""How long an interrupted call may clean up after itself."""


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


_loops: list[asyncio.AbstractEventLoop] = []
_starting = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the background thread, started at the first use in this process."""
    if not _loops:
        with _starting:  # threads that come at once would get one each, and connections of one fail on the other
            if not _loops:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="monarch_nb", daemon=True).start()
                _loops.append(loop)
    return _loops[0]


def _begin_anew() -> None:
    """A forked process has no other threads, perhaps in the middle of a start."""
    global _starting
    _loops.clear()
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


def post(callback: Callable[..., object], *arguments: object) -> None:
    """Call `callback` soon on the background loop, in a context of its own: ipykernel keeps the running cell in the
    caller's, and what outlives the cell must not carry it along."""
    background_loop().call_soon_threadsafe(callback, *arguments, context=contextvars.Context())


def call(
    work: Coroutine[Any, Any, T],
    timeout_s: float | None = None,
    *,
    undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
) -> T:
    """Run `work` on the background loop and return its result; Ctrl-C, or what interrupts this thread (see
    monarch_nb.ground.interrupting), cancels it and waits until it has cleaned up.

    Args:
        undo: called with the result of work that was complete before Ctrl-C could cancel it: nobody gets that result.

    Raises:
        TimeoutError: it took longer than `timeout_s`; it is cancelled.
    """
    loop = background_loop()
    values: list[T] = []
    errors: list[BaseException] = []
    ended = Flag()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        try:
            values.append(await work)
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            errors.append(error)

    def start() -> None:
        tasks.append(loop.create_task(run()))
        tasks[0].add_done_callback(end)

    def end(_: asyncio.Task[None] | None = None) -> None:
        if not values and not errors:  # it was cancelled before it began
            work.close()
            errors.append(asyncio.CancelledError())
        tasks.clear()  # freed by the loop: asyncio's weak references to it would lose the caller's Ctrl-C
        ended.set()

    def cancel() -> None:
        for task in tasks:
            task.cancel()
        if not tasks:  # Ctrl-C came before `start` was posted, or after the end
            end()

    interrupt = interrupting.current()
    try:
        post(start)
        with interrupt.waking(lambda: post(cancel)) if interrupt else contextlib.nullcontext():
            if not ended.wait(timeout_s):
                raise TimeoutError
    except (TimeoutError, KeyboardInterrupt):
        if not ended.is_set():
            post(cancel)
            ended.wait(CLEAN_UP_S)
        if undo and values:
            call(undo(values[0]), CLEAN_UP_S)
        raise
    if errors:
        if interrupt is not None and isinstance(errors[0], asyncio.CancelledError):
            interrupt.check()
        raise errors.pop()  # kept here, it and this frame would hold each other
    return values[0]
