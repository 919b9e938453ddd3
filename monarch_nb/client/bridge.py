"""The one bridge between callers' threads and the asyncio loop on which all work on channels happens."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from monarch_nb import interrupting

T = TypeVar("T")

CLEAN_UP_S = 10.0
"""How long an interrupted call may clean up after itself."""


@cache
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the background thread, started at the first use in this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="monarch_nb", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=background_loop.cache_clear)


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
    monarch_nb.interrupting), cancels it and waits until it has cleaned up.

    Args:
        undo: called with the result of work that was complete before Ctrl-C could cancel it: nobody gets that result.

    Raises:
        TimeoutError: it took longer than `timeout_s`; it is cancelled.
    """
    loop = background_loop()
    result: concurrent.futures.Future[T] = concurrent.futures.Future()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        try:
            result.set_result(await work)
        except asyncio.CancelledError as error:
            result.set_exception(error)  # not `cancel`: nobody would be told that it has come to an end
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            result.set_exception(error)

    def start() -> None:
        tasks.append(loop.create_task(run()))
        tasks[0].add_done_callback(ended)

    def ended(_: asyncio.Task[None]) -> None:
        if not result.done():  # it was cancelled before it began
            work.close()
            result.set_exception(asyncio.CancelledError())

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    interrupt = interrupting.current()
    try:
        post(start)
        with interrupt.waking(lambda: post(cancel)) if interrupt else contextlib.nullcontext():
            return result.result(timeout_s)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt.check()
        raise
    except (TimeoutError, KeyboardInterrupt):
        if not result.done():
            post(cancel)
            concurrent.futures.wait([result], CLEAN_UP_S)
        if undo and result.done() and not result.exception():
            call(undo(result.result()), CLEAN_UP_S)
        raise
