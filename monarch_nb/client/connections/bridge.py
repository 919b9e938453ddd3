"""The one bridge between callers' threads and the asyncio loop on which all work on channels happens."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from monarch_nb.config import patience
from monarch_nb.ground import interrupting
from monarch_nb.ground.flag import Flag

T = TypeVar("T")

CLEAN_UP_S = patience(10.0)
"""How long an interrupted call may clean up after itself."""


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
