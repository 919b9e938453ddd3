"""A cell that waits long for Monarch says what goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from monarch_nb.client import presenting

AFTER_S = 3.0
"""As of our own actors: who waits for so long wants to know why."""
LONGEST_S = 24.0
"""So often it is asked again at least."""
NOTICE = "waits"


@dataclass(eq=False)
class _Wait:
    """One that goes on. `told`: something was said of it."""

    cell: presenting.CallingCell
    began_s: float = field(default_factory=time.monotonic)
    told: bool = False


class Waits:
    """Looks after the cells of this process that wait. Scripts are left alone.

    Args:
        said: asks what goes on, and returns it for people; empty when that is not known.
    """

    def __init__(self, said: Callable[[], str]) -> None:
        self._said = said
        self._lock = threading.Lock()
        self._waits: list[_Wait] = []
        self._is_watched = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block it is waited. Short waits cost next to nothing."""
        cell = presenting.calling_cell()
        if cell is None:
            yield
            return
        wait = _Wait(cell)
        with self._lock:
            self._waits.append(wait)
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="monarch_nb waits", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(wait)
                if wait.told:
                    cell.tell("", NOTICE)

    def _watch(self) -> None:
        """Look again and again, until nobody waits."""
        left_s, pause_s = AFTER_S, AFTER_S
        while True:
            time.sleep(left_s)
            with self._lock:
                if not self._waits:
                    self._is_watched = False
                    return
                oldest = self._waits[0]
                left_s = oldest.began_s + AFTER_S - time.monotonic()
            if left_s > 0:
                pause_s = AFTER_S
                continue
            self._tell(oldest, self._said())
            left_s, pause_s = pause_s, min(2 * pause_s, LONGEST_S)

    def _tell(self, wait: _Wait, text: str) -> None:
        with self._lock:
            if wait in self._waits and (text or wait.told):
                wait.cell.tell(text, NOTICE)
                wait.told = True
