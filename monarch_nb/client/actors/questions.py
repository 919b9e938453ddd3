"""What ranks ask of this process in its runs of calls: who waits for any call is there to answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Questions:
    """Questions, answered one after the other by those who wait. From any thread."""

    def __init__(self) -> None:
        self._asked: deque[Callable[[], None]] = deque()
        self._wakes: list[Callable[[], object]] = []
        self._lock, self._answering = threading.Lock(), threading.Lock()

    def ask(self, question: Callable[[], None]) -> None:
        """Have `question` called by somebody who waits, now or later; once, if it is asked again before."""
        with self._lock:
            if question not in self._asked:
                self._asked.append(question)
            wakes = self._wakes.copy()
        for wake in wakes:
            wake()

    def attend(self, wake: Callable[[], object]) -> None:
        """As the engine's Questions."""
        with self._lock:
            self._wakes.append(wake)
            is_due = bool(self._asked) and not self._answering.locked()
        if is_due:
            wake()

    def leave(self, wake: Callable[[], object]) -> None:
        """As the engine's Questions."""
        with self._lock:
            self._wakes.remove(wake)

    def answer(self) -> None:
        """As the engine's Questions: who is at it already answers the others as well."""
        while self._asked and self._answering.acquire(blocking=False):
            try:
                if self._asked:  # nobody else takes one now
                    self._asked.popleft()()
            finally:
                self._answering.release()
