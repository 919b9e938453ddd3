"""A cell that waits long for Monarch says what goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from monarch_nb.client import presenting
from monarch_nb.config import cadence

AFTER_S = cadence(3.0)
"""As of our own actors: who waits for so long wants to know why."""
LONGEST_S = cadence(24.0)
"""So often it is asked again at least."""
NOTICE = "waits"


@dataclass(eq=False)
class _Wait:
    """One that goes on. `told`: something was said of it. It is asked of at `due_s`, and `pause_s` later again."""

    cell: presenting.CallingCell
    due_s: float = field(default_factory=lambda: time.monotonic() + AFTER_S)
    pause_s: float = field(default_factory=lambda: AFTER_S)
    asked: bool = False
    told: bool = False


class Waits:
    """Looks after the cells of this process that wait. Scripts are left alone.

    Args:
        said: asks what goes on, and returns it for people; empty when that is not known.
    """

    def __init__(self, said: Callable[[], str]) -> None:
        self._said = said
        self._changed = threading.Condition()
        self._waits: list[_Wait] = []
        self._is_watched = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block it is waited. Short waits cost next to nothing: they wake nobody."""
        cell = presenting.calling_cell()
        if cell is None:
            yield
            return
        wait = _Wait(cell)
        with self._changed:
            self._waits.append(wait)
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="monarch_nb waits", daemon=True).start()
        try:
            yield
        finally:
            with self._changed:
                self._waits.remove(wait)
                if wait.asked:  # the watch may rest for longer than the next wait is to
                    self._changed.notify()
                if wait.told:
                    cell.tell("", NOTICE)

    def _watch(self) -> None:
        while (wait := self._next()) is not None:
            self._tell(wait, self._said())

    def _next(self) -> _Wait | None:
        """Return the oldest wait when it is to be asked what goes on; None, and the watch is over: nobody waits."""
        with self._changed:
            while self._waits:
                oldest = self._waits[0]
                left_s = oldest.due_s - time.monotonic()
                if left_s <= 0:
                    oldest.asked = True
                    return oldest
                self._changed.wait(left_s)
            self._is_watched = False
        return None

    def _tell(self, wait: _Wait, text: str) -> None:
        with self._changed:
            if wait in self._waits and (text or wait.told):
                wait.cell.tell(text, NOTICE)
                wait.told = True
            wait.due_s, wait.pause_s = time.monotonic() + wait.pause_s, min(2 * wait.pause_s, LONGEST_S)
