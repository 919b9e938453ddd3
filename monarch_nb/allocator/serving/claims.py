"""Names of reservations that one caller has at a time."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Claims:
    """Who has which name. A lock is there as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, reservation_id: str, name: str) -> asyncio.Lock:
        """Return the lock that whoever has this name of a reservation holds; who waits gets it in turn."""
        return self._locks.setdefault((reservation_id, name), asyncio.Lock())
