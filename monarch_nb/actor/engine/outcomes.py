"""A result that comes once: on which threads wait, and loops."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from monarch_nb.actor.engine.outside import Questions
from monarch_nb.ground import interrupting
from monarch_nb.ground.flag import LOOK_S, Flag


class Outcome:
    """Resolved once with something raw, of which the first who looks makes the value: it may have to be unpickled,
    which is not done where messages arrive.

    Args:
        finish: makes the value, or raises what who asks for it is to get.
    """

    __slots__ = ("__weakref__", "_callbacks", "_error", "_finish", "_flag", "_lock", "_raw", "_value")

    def __init__(self, finish: Callable[[Any], Any]) -> None:
        self._finish: Callable[[Any], Any] | None = finish
        self._flag = Flag()
        self._lock = Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._raw: Any = None
        self._value: Any = None
        self._error: BaseException | None = None

    def is_resolved(self) -> bool:
        """Whether it has come."""
        return self._flag.is_set()

    def resolve(self, raw: Any) -> None:
        """Give it; later ones are ignored. From any thread."""
        with self._lock:
            if self._flag.is_set():
                return
            self._raw = raw
            self._flag.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_resolved(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the thread that resolves it, or now if that has been. It must not raise."""
        with self._lock:
            if not self._flag.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], object]) -> None:
        """Do not call `callback` any more."""
        with self._lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def wait(self, timeout_s: float | None = None, questions: Questions | None = None) -> bool:
        """Wait until it has come, or the time is up, or the thread is interrupted; return whether it has.

        Args:
            questions: are answered meanwhile, which is not part of the time.
        """
        if questions is None or self._flag.is_set():
            return _wait(self._flag, timeout_s)
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        news = Flag()
        self.when_resolved(news.set)
        questions.attend(news.set)
        try:
            while _wait(news, until_s - time.monotonic()) and not self._flag.is_set():
                news.clear()
                if not self._flag.is_set():  # else it has come just before
                    asked_s = time.monotonic()
                    questions.answer()
                    until_s += time.monotonic() - asked_s
        finally:
            questions.leave(news.set)
            self.forget(news.set)
        return self._flag.is_set()

    def value(self) -> Any:
        """Return the value of a resolved one, or raise what it is."""
        with self._lock:
            if self._finish is not None:
                finish, raw = self._finish, self._raw
                try:
                    self._value = finish(raw)
                except Exception as error:  # noqa: BLE001 -- kept for whoever asks again
                    self._error = error
                self._finish = self._raw = None
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value


def _wait(flag: Flag, timeout_s: float | None) -> bool:
    """Wait for a flag as anything that Ctrl-C, or what interrupts the work of this thread, ends."""
    if timeout_s == math.inf:
        timeout_s = None
    interrupt = interrupting.current()
    if interrupt is None or flag.is_set():
        return flag.wait(timeout_s)
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not flag.wait(min(LOOK_S, max(0.0, until_s - time.monotonic()))):
        interrupt.check()
        if time.monotonic() >= until_s:
            return False
    return True
