"""Interrupting work that another thread does, as Ctrl-C interrupts the main thread's. Standard library only."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator


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
