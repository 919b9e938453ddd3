"""A clock that jumps, and processes that a test may kill."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from monarch_nb.ground import interrupting

T = TypeVar("T")

STUCK_S = 5.0
"""Nothing is due, nobody can move: that is a fault of a test, which real time shows."""
LONGEST_S, LONGEST_REAL_S = 24 * 3600.0, 60.0
"""So long a test waits at most for one thing, in the cluster's time and in real time: what never comes fails the test,
although timers that repeat go on for ever, or somebody goes round in circles at one moment."""


class Life:
    """A process, from its start to its end. When it is killed, nothing of it is executed any more: its tasks stand
    still where they are, as those of a process that has got SIGKILL."""

    def __init__(self, name: str, machine: Any = None) -> None:
        self.name, self.machine, self.is_over = name, machine, False

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function as this process."""
        if running.get() is self:
            return function(*arguments, **named)
        context = contextvars.Context()
        context.run(running.set, self)
        return context.run(function, *arguments, **named)


running: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to what is due next when there is nothing else to do."""

    def __init__(self) -> None:
        self.now_s, self._is_thawed = 1000.0, False
        self._give_up = float("inf"), float("inf")
        self._frozen: list[tuple[Callable[[], Any], contextvars.Context]] = []
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._of_life(callback, context), *arguments, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:
        return super().call_at(when, self._of_life(callback, context), *arguments, context=context)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:
        if context is not None:
            context.run(running.set, running.get())  # it is a process's, although a fresh context does not say so
        return super().call_soon_threadsafe(self._of_life(callback, context), *arguments, context=context)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Do it here and now: a thread's time is not virtual."""
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            future.set_exception(error)
        return future

    def until_done(self, future: asyncio.Future[Any]) -> None:
        """Have everybody else move until a future is done. From any thread of the cluster."""
        if future.done():
            return
        if isinstance(thread := threading.current_thread(), Work):
            thread.wait_for(future)
        else:
            self._give_up = self.now_s + LONGEST_S, time.perf_counter() + LONGEST_REAL_S
            future.add_done_callback(self._stop, context=contextvars.Context())
            try:
                self.run_forever()
            finally:
                future.remove_done_callback(self._stop)

    def _stop(self, _: object) -> None:
        self.stop()

    def check_patience(self) -> None:
        """Raise when the test has waited for too long."""
        at_s, at_real_s = self._give_up
        assert self.now_s <= at_s, f"what the test waits for does not come within {LONGEST_S:g} s"
        assert time.perf_counter() <= at_real_s, f"what the test waits for does not come in {LONGEST_REAL_S:g} real s"

    async def end_all(self) -> None:
        """Cancel all tasks, also those of the dead, which do now what they did not do then, and what they begin."""
        self._is_thawed = True
        for _ in range(5):
            frozen, self._frozen = self._frozen, []
            for callback, context in frozen:
                self.call_soon(callback, context=context)
            if rest := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in rest:
                    task.cancel()
                await asyncio.wait(rest, timeout=1)

    def _of_life(self, callback: Callable[..., Any], context: contextvars.Context | None) -> Callable[..., Any]:
        life = running.get() if context is None else context.get(running)
        return callback if life is None else functools.partial(self._if_alive, life, callback)

    def _if_alive(self, life: Life, callback: Callable[..., Any], *arguments: Any) -> None:
        if life.is_over and not self._is_thawed:
            self._frozen.append((functools.partial(callback, *arguments), contextvars.copy_context()))
        else:
            callback(*arguments)


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.check_patience()
        if ready := super().select(0):
            return ready
        if timeout is None:
            ready = super().select(STUCK_S)
            assert ready, "everybody waits for something that nobody will do"
        else:
            self._loop.now_s += timeout
        return ready


class Work(threading.Thread):
    """What somebody does beside the test. Of the test, the loop and all of these only one moves at a time."""

    def __init__(self, loop: VirtualLoop, life: Life, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._loop, self._life, self._function = loop, life, function
        self._own_turn, self._others_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._interrupt = interrupting.Interrupt()
        self._ended, self._is_given_up = loop.create_future(), False
        self._outcome: tuple[Any, BaseException | None] = None, None
        self.start()
        life.call(loop.call_soon, self._move)

    @property
    def done(self) -> bool:
        return self._ended.done()

    @property
    def error(self) -> BaseException | None:
        """What it has raised."""
        return self._outcome[1]

    @property
    def is_alive_process(self) -> bool:
        """Whether the process that does it was not killed."""
        return not self._life.is_over

    def result(self) -> Any:
        """Wait for its end; return or raise what it does."""
        self._loop.until_done(self._ended)
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._life.call(self._interrupt.set)

    def run(self) -> None:
        try:
            self._own_turn.acquire()
            if self._is_given_up:
                raise SystemExit
            self._outcome = self._life.call(self._work), None
        except BaseException as error:  # noqa: BLE001 (raised again by `result`)
            self._outcome = None, error
        if not self._ended.done():
            self._ended.set_result(None)
        self._others_turn.release()

    def _work(self) -> Any:
        with interrupting.interruptible(self._interrupt):
            return self._function()

    def wait_for(self, woken: asyncio.Future[Any]) -> None:
        """Let the others move until it is done. Called by this thread."""
        if not self._is_given_up:
            woken.add_done_callback(lambda _: self._move())
            self._others_turn.release()
            self._own_turn.acquire()
        if self._is_given_up:
            raise SystemExit

    def _move(self) -> None:
        self._own_turn.release()
        self._others_turn.acquire()

    def give_up(self) -> None:
        """End the thread of one that was killed, or never came to an end."""
        self._is_given_up = True
        if self.is_alive():
            self._own_turn.release()
            self.join(STUCK_S)
        self._interrupt.close()
