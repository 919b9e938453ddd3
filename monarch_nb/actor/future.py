"""Results that come later."""

from __future__ import annotations

import asyncio
import contextlib
import math
import warnings
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from monarch_nb.actor.engine.calls import Call, Outcome
from monarch_nb.actor.engine.outside import Questions, Tag
from monarch_nb.actor.engine.process import current, installed
from monarch_nb.config import patience
from monarch_nb.errors import GROUP_ABORTED
from monarch_nb.ground.callers import end_at_caller
from monarch_nb.ground.interrupting import AwaitedPresses, at_awaits, at_waits, kernel_ends
from monarch_nb.ground.rank_sets import name_ranks

R = TypeVar("R")

_CLEAN_UP_S = patience(30.0)
"""How long who was interrupted waits for ranks to end what was interrupted too, and to say so. It is long: on a busy
machine they are slow, and who does not want to wait presses again."""
_PRESSES = 3
"""Each interrupts, and kills what was just said not to stop; then nobody is waited for."""


class CallInterrupted(KeyboardInterrupt):
    """Ctrl-C ended the wait for a call; the text says what that did."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        end_at_caller(self.__traceback__)
        return [f"\x1b[31mKeyboardInterrupt\x1b[39m: {self}"]


class Future(Generic[R]):
    """A result that comes later. The adverbs of endpoints return it.

    The call was sent already. You need not wait for its result.

    Example:
        >>> losses = trainers.step.call(10).get(timeout=60)  # or: await trainers.step.call(10)
        >>> future = trainers.step.call(11)  # in a coroutine: asyncio.wait_for(future.as_asyncio(), 60)
        >>> future.result(), counters.fail.call().exception()
    """

    _outcome: Outcome
    _call: Call | None

    def __init__(self) -> None:
        raise TypeError("Future objects are returned by Monarch operations and cannot be constructed directly.")

    @classmethod
    def _of(cls, outcome: Outcome, call: Call | None = None) -> Future[Any]:
        future = cls.__new__(cls)
        future._outcome, future._call = outcome, call
        return future

    def get(self, timeout: float | None = None) -> R:
        """Wait for the result and return it. You can call it again.

        Args:
            timeout: the longest wait, in seconds. It cancels nothing: a later `get` returns the result.

        Raises:
            TimeoutError: the time is up.
            ActorError: the call failed on some ranks. SupervisionError: these ranks no longer answer.
            RuntimeError: an actor waits for itself.
            ValueError: the timeout is negative or not finite.
            KeyboardInterrupt: you pressed Ctrl-C. The call is interrupted as well.
        """
        if timeout is not None and not (0 <= timeout < math.inf):
            raise ValueError(f"invalid timeout {timeout}: expected a non-negative, finite number of seconds")
        if not self._outcome.is_resolved():
            self._check_waiting()
            self._wait(timeout)
        value: R = self._outcome.value()
        return value

    def result(self, timeout: float | None = None) -> R:
        """Like `get`."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the result. Return the exception that `get` would raise, or None."""
        try:
            self.get(timeout)
        except Exception as error:  # noqa: BLE001 -- wanted
            return error
        return None

    def as_asyncio(self) -> asyncio.Future[R]:
        """Return a new asyncio future of the running loop. If you cancel it, the call goes on."""
        asyncio.get_running_loop()
        return asyncio.ensure_future(self._awaited())

    async def _awaited(self) -> R:
        return await self

    def __await__(self) -> Generator[Any, None, R]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ValueError("__await__ with no active event loop: use get()") from None
        if not self._outcome.is_resolved():
            self._refuse_to_wait_for_itself()
            with at_awaits(loop) as presses:
                seen = presses.count if presses is not None else 0
                try:
                    yield from self._resolved(loop, _questions()).__await__()
                except asyncio.CancelledError:
                    tag = self._call.tag if self._call is not None else None
                    is_pressed = presses is not None and presses.count > seen
                    if presses is None or not is_pressed or tag is None or not tag.runs or current() is not None:
                        raise
                    if did := (yield from self._interrupt(loop, tag, presses).__await__()):
                        # Told as ipykernel tells it: KeyboardInterrupt in a task would end the loop.
                        raise asyncio.CancelledError(did) from None
                    presses.go_on()
        value: R = self._outcome.value()
        return value

    async def _resolved(self, loop: asyncio.AbstractEventLoop, questions: Questions | None = None) -> None:
        while not self._outcome.is_resolved():
            await self._next(loop, questions)
            if questions is not None and not self._outcome.is_resolved():
                questions.answer()

    async def _next(self, loop: asyncio.AbstractEventLoop, questions: Questions | None) -> None:
        """Wait for the result, or for a question."""
        waiter = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, waiter)

        self._outcome.when_resolved(wake)
        if questions is not None:
            questions.attend(wake)
        try:
            await waiter
        finally:
            self._outcome.forget(wake)
            if questions is not None:
                questions.leave(wake)

    async def _interrupt(self, loop: asyncio.AbstractEventLoop, tag: Tag, presses: AwaitedPresses) -> str:
        """As `_interrupted`, for who awaits; return what that did, or nothing."""
        assert self._call is not None
        if await presses.kernel_ends():
            return f"the kernel ends; {self._call.title} goes on"
        resolved = loop.create_task(self._resolved(loop))
        try:
            for _ in range(_PRESSES):
                if presses.take():
                    tag.interrupt()
                pressed = loop.create_task(presses.next(_CLEAN_UP_S))
                await asyncio.wait({resolved, pressed}, return_when=asyncio.FIRST_COMPLETED)
                if resolved.done():
                    aftermath = await asyncio.to_thread(tag.aftermath)
                    if not aftermath and self._has_value():
                        return ""
                    return _sentence(f"interrupted {self._call.title}", aftermath, self._broken())
                if not pressed.result():
                    break
        finally:
            resolved.cancel()
        ranks = name_ranks(self._call.unanswered)
        return f"{self._call.title} was interrupted, but {ranks} of the call did not answer"

    def _wait(self, timeout: float | None) -> None:
        with at_waits():  # so that it can be told whether Jupyter ends this kernel, which is not for the actors
            try:
                is_there = self._outcome.wait(timeout, _questions())
            except KeyboardInterrupt:
                tag = self._call.tag if self._call is not None else None
                if tag is None or not tag.runs or current() is not None:  # an actor that is interrupted holds nobody up
                    raise
                if (interrupted := self._interrupted(tag)) is not None:
                    raise interrupted from None
                return
        if not is_there:
            raise TimeoutError(self._late(timeout))

    def _late(self, timeout: float | None) -> str:
        within = f"within {timeout or 0.0:g} s"
        if self._call is None:
            return f"nothing came {within}; the next recv() gets what comes later"
        total = len(self._call.places)
        ranks = f" by {name_ranks(self._call.unanswered)} of {total}" if total > 1 and self._call.unanswered else ""
        return f"{self._call.title} was not answered {within}{ranks}; it goes on, and a later get() returns its result"

    def _interrupted(self, tag: Tag) -> CallInterrupted | None:
        """Interrupt what was called, again at each press, and wait until it was answered, or nobody wants to wait.
        Return None when the endpoints have handled it: the call has a result."""
        assert self._call is not None
        for _ in range(_PRESSES):
            if kernel_ends():
                return CallInterrupted(f"the kernel ends; {self._call.title} goes on")
            tag.interrupt()
            try:
                is_there = self._outcome.wait(_CLEAN_UP_S)
            except KeyboardInterrupt:
                continue
            if is_there:
                aftermath = tag.aftermath()
                if not aftermath and self._has_value():
                    return None
                return CallInterrupted(_sentence(f"interrupted {self._call.title}", aftermath, self._broken()))
            break
        ranks = name_ranks(self._call.unanswered)
        return CallInterrupted(f"{self._call.title} was interrupted, but {ranks} of the call did not answer")

    def _has_value(self) -> bool:
        with contextlib.suppress(Exception):  # what the call raised
            self._outcome.value()
            return True
        return False

    def _broken(self) -> str:
        """Return what ranks say of process groups that the interrupt broke; empty when it did not."""
        try:
            self._outcome.value()
        except Exception as error:  # noqa: BLE001 -- what the call raised
            return GROUP_ABORTED if GROUP_ABORTED in str(error) else ""
        return ""

    def _check_waiting(self) -> None:
        self._refuse_to_wait_for_itself()
        step = current()
        if step is not None and step.execution.loop is not None and step.is_waiting_thread():
            warnings.warn(
                "Future.get() was called from within an active event loop. It holds up everything else in the loop of "
                f"actor {step.runner.title}: use `await` instead.",
                UserWarning,
                stacklevel=4,
            )

    def _refuse_to_wait_for_itself(self) -> None:
        step, call = current(), self._call
        if step is None or call is None or not call.waits_for_itself or not step.is_waiting_thread():
            return
        uid, rank = call.waits_for_itself
        if uid == step.runner.uid and rank in call.unanswered:
            raise RuntimeError(
                f"{step.runner.title}.{step.execution.endpoint} waits for its own actor ({call.title}), which takes "
                "the next message only after this one: it would wait for ever. Call the method itself, or make this a "
                "concurrent_endpoint"
            )

    def __repr__(self) -> str:
        return f"<Future of {self._call.title if self._call is not None else 'a value'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a Future: wait for its result and send that")


class Futures(Iterator[Future[R]]):
    """The iterator that `stream` returns. `for` gets futures and `async for` gets results, in the order in which
    results come."""

    def __init__(self, futures: Iterable[Future[R]]) -> None:
        self._futures = iter(futures)

    def __next__(self) -> Future[R]:
        return next(self._futures)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        future = next(self._futures, None)
        if future is None:
            raise StopAsyncIteration
        return await future


def _questions() -> Questions | None:
    """Return what is asked of people who wait here; an actor's wait is nobody's."""
    home = installed()
    return home.outside.questions if home is not None and current() is None else None


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def future_of(outcome: Outcome, call: Call | None = None) -> Future[Any]:
    """Return a future, for who has the outcome."""
    return Future._of(outcome, call)
