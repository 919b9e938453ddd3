"""Interrupting work: that of another thread as Ctrl-C interrupts the main thread's, and the main thread's only where it
waits. Standard library only.

Jupyter interrupts a kernel just before it tells it to shut down: that Ctrl-C is not for the ranks (see `kernel_ends`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

from monarch_nb.ground.readable import readable


class Interrupt:
    """Set from any thread, it makes the work that it covers raise KeyboardInterrupt once: where it waits or looks.

    Example:
        >>> interrupt = Interrupt()
        >>> with interruptible(interrupt):
        ...     interrupt.check()
        >>> interrupt.close()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = self._is_closed = False
        self._wake: Callable[[], None] | None = None
        self._read_end, self._write_end = os.pipe()

    def set(self) -> None:
        """Interrupt the work: now where it waits, else at its next wait."""
        with self._lock:
            if self._is_set or self._is_closed:
                return
            self._is_set = True
            os.write(self._write_end, b"x")
            wake = self._wake
        if wake is not None:
            wake()

    def check(self) -> None:
        """Raise KeyboardInterrupt if it is set; whoever cleans up then is not interrupted again."""
        with self._lock:
            if not self._is_set or self._is_closed:
                return
            self._is_set = False
            os.read(self._read_end, 1)
        raise KeyboardInterrupt

    def fileno(self) -> int:
        """Readable once it is set: for selectors."""
        return self._read_end

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called when it is set while the block is executed, at once if it is set already."""
        with self._lock:
            self._wake = wake
            is_set = self._is_set
        if is_set:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._wake = None

    def close(self) -> None:
        """Give the pipe back; setting it has no effect afterwards."""
        with self._lock:
            self._is_closed = True
            os.close(self._read_end)
            os.close(self._write_end)


_current: contextvars.ContextVar[Interrupt | None] = contextvars.ContextVar("monarch_nb_interrupt", default=None)


def current() -> Interrupt | None:
    """Return what interrupts the work of this thread, beside Ctrl-C."""
    return _current.get()


@contextlib.contextmanager
def interruptible(interrupt: Interrupt) -> Iterator[None]:
    """Let `interrupt` interrupt what the block does in this thread."""
    token = _current.set(interrupt)
    try:
        yield
    finally:
        _current.reset(token)


def pause(seconds: float) -> None:
    """Wait between two looks at something that tells nobody when it changes; can be interrupted."""
    interrupt = current()
    readable([interrupt] if interrupt else [], seconds)
    if interrupt:
        interrupt.check()


F = TypeVar("F", bound=Callable[..., Any])
_waits: set[CodeType] = set()
_held_back: HeldBack | None = None
_ending_kernel: object = None
"""IPython's kernel that was told to shut down."""

_CELL = "run_cell_async"
"""What IPython calls the coroutine of a cell."""
SHUTDOWN_NOTICE_S = 0.3
"""How long after a Ctrl-C a kernel waits to hear that it is shut down: Jupyter says so at once."""


def waits(function: F) -> F:
    """Mark a function that waits, and that can be interrupted anywhere; it looks at `held_back`."""
    _waits.add(function.__code__)
    return function


def is_wait(code: CodeType) -> bool:
    """Return whether `code` is that of a function that `waits`."""
    return code in _waits


class HeldBack:
    """The handler of SIGINT in a block of `at_waits`: it raises in functions that wait, and else remembers the press.

    A wait looks at `is_pressed` itself, in its own frame, when it has nothing more to call: in any function that it
    calls a press would only be remembered.
    """

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.is_pressed = False
        self._before = before
        self._is_kernel = self._kernel_ends = False
        self._shutdown = allocate_lock()  # unlocked when the kernel is told to shut down
        self._shutdown.acquire()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in _waits:
            self._before(number, frame)
        else:
            self.is_pressed = True

    def raise_now(self) -> None:
        """Do what Ctrl-C does outside of the block."""
        self.is_pressed = False
        self._before(signal.SIGINT, None)

    @contextlib.contextmanager
    def hearing_of_shutdown(self) -> Iterator[None]:
        """Hear of it if this process is a kernel that is told to shut down."""

        def told() -> None:
            self._kernel_ends = True
            with contextlib.suppress(RuntimeError):  # it was told before
                self._shutdown.release()

        with _hearing_of_shutdown(told) as is_kernel:
            self._is_kernel = is_kernel
            yield

    def hears_of_shutdown(self) -> bool:
        """Wait for it a moment after a Ctrl-C, and after each that comes meanwhile; return whether the kernel ends."""
        if _is_ending():
            return True
        while self._is_kernel:
            with contextlib.suppress(KeyboardInterrupt):
                return self._wait_for_shutdown()
        return False

    @waits
    def _wait_for_shutdown(self) -> bool:
        while self.is_pressed:
            self.raise_now()
        return self._kernel_ends or self._shutdown.acquire(timeout=SHUTDOWN_NOTICE_S)

    @contextlib.contextmanager
    def anywhere(self) -> Iterator[None]:
        """Let Ctrl-C raise anywhere again."""
        signal.signal(signal.SIGINT, self._before)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self)


def _kernel() -> Any:
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) if "IPython" in sys.modules else None


def _is_ending() -> bool:
    return _ending_kernel is not None and _kernel() is _ending_kernel


@contextlib.contextmanager
def _hearing_of_shutdown(told: Callable[[], None]) -> Iterator[bool]:
    """Call `told` if this process is a kernel that is told to shut down: ipykernel's control thread is told so also
    while the main thread waits. The block gets whether it is a kernel."""
    kernel = _kernel()
    handlers: dict[str, Callable[..., Any]] = getattr(kernel, "control_handlers", {})
    handler = handlers.get("shutdown_request")
    if handler is None:
        yield False
        return

    def tell(*message: Any) -> Any:
        global _ending_kernel
        _ending_kernel = kernel
        told()
        return handler(*message)

    handlers["shutdown_request"] = tell
    try:
        yield True
    finally:
        handlers["shutdown_request"] = handler


def held_back() -> HeldBack | None:
    """Return what holds Ctrl-C back in this thread, if anything does."""
    return _held_back if threading.current_thread() is threading.main_thread() else None


def kernel_ends() -> bool:
    """Return whether the Ctrl-C that has just come in a block of `at_waits` was Jupyter's, which ends this kernel: a
    kernel waits a moment until it hears so, any other process knows at once."""
    held = held_back()
    return held is not None and held.hears_of_shutdown()


@contextlib.contextmanager
def at_waits() -> Iterator[None]:
    """Let Ctrl-C raise only where the block waits, and at its end: what it does in between is done whole. Else a press
    between submitting a run and waiting for it would leave ranks at work for nobody, and one in a callback of Python's
    own (a weak reference's, say) would be lost.

    Example:
        >>> with at_waits():
        ...     pass
    """
    global _held_back
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or _held_back is not None or not callable(before):
        yield
        return
    # ipykernel's handler would cancel a cell that awaits only when it awaits again.
    cell = _awaiting_cell()
    held = HeldBack(signal.default_int_handler if cell is not None and cell is asyncio.current_task() else before)
    signal.signal(signal.SIGINT, held)
    _held_back = held
    is_interrupted = False
    try:
        with held.hearing_of_shutdown():
            yield
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        _held_back = None
        signal.signal(signal.SIGINT, before)
        if held.is_pressed and not is_interrupted:
            held.raise_now()


@contextlib.contextmanager
def at_prompt() -> Iterator[None]:
    """Let Ctrl-C raise at once while people are asked something, whatever it does else in this block or event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def anywhere() -> contextlib.AbstractContextManager[None]:
    """Let Ctrl-C raise anywhere again, inside of a block of `at_waits`."""
    held = held_back()
    return contextlib.nullcontext() if held is None else held.anywhere()


class AwaitedPresses:
    """Ctrl-C while coroutines of the main thread await. It does what it did before (ipykernel cancels the cell), and
    wakes the loop: a signal alone does not, so that ipykernel would cancel the cell only when something else happens.

    Attributes:
        count: how often it came.
        is_kernel: this process is one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, before: Callable[[int, FrameType | None], Any]) -> None:
        self.loop, self.before, self.count, self.is_kernel = loop, before, 0, False
        self._taken = 0
        self._pressed, self._shutdown = asyncio.Event(), asyncio.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.loop.call_soon_threadsafe(self._pressed.set)
        self.before(number, frame)

    def shut_down(self) -> None:
        """The kernel is told to shut down. From any thread."""
        self.loop.call_soon_threadsafe(self._shutdown.set)

    def take(self) -> bool:
        """Return whether the newest is yet to be acted upon; one of those that await beside each other does it."""
        taken, self._taken = self._taken, self.count
        return taken < self.count

    async def next(self, timeout_s: float) -> bool:
        """Wait for one more; return whether it came in time."""
        self._pressed.clear()
        return await _in_time(self._pressed, timeout_s)

    def go_on(self) -> None:
        """Whom the newest has cancelled goes on. The next one cancels again: ipykernel would do that once in a cell."""
        task = asyncio.current_task()
        assert task is not None
        cell = _awaiting_cell() or task
        for each in {task, cell}:
            each.uncancel()
        if self.is_kernel:
            self.before = _cancelling(cell)

    async def kernel_ends(self) -> bool:
        """Return whether the one that has just come was Jupyter's, which ends this kernel (see `kernel_ends`)."""
        return _is_ending() or (self.is_kernel and await _in_time(self._shutdown, SHUTDOWN_NOTICE_S))


def _awaiting_cell() -> asyncio.Task[Any] | None:
    """Return the task in which IPython executes a cell that awaits, if it does so in this thread."""
    with contextlib.suppress(RuntimeError):  # no loop runs here
        return next((each for each in asyncio.all_tasks() if getattr(each.get_coro(), "__name__", "") == _CELL), None)
    return None


def _cancelling(cell: asyncio.Task[Any]) -> Callable[[int, FrameType | None], None]:
    """Return a handler of SIGINT, as ipykernel's, that cancels a cell at the first one."""
    left = [cell.cancel]

    def on_press(number: int, frame: FrameType | None) -> None:
        while left:
            cell.get_loop().call_soon_threadsafe(left.pop())

    return on_press


async def _in_time(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


@contextlib.contextmanager
def at_awaits(loop: asyncio.AbstractEventLoop) -> Iterator[AwaitedPresses | None]:
    """Notice Ctrl-C while a coroutine awaits in the block. None where it can not come: in other threads."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_main else None
    if isinstance(before, AwaitedPresses) and before.loop is loop:  # one that awaits beside this one
        yield before
        return
    if not callable(before):
        yield None
        return
    presses = AwaitedPresses(loop, before)
    signal.signal(signal.SIGINT, presses)
    try:
        with _hearing_of_shutdown(presses.shut_down) as presses.is_kernel:
            yield presses
    finally:
        installed: object = signal.getsignal(signal.SIGINT)
        if installed is presses:  # else it was changed back by who waits for the whole cell
            signal.signal(signal.SIGINT, presses.before)
