"""An actor's messages, and where they wait, in their order, until its thread has time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monarch_nb.actor.engine.handles import Place
from monarch_nb.actor.engine.messages import Value
from monarch_nb.actor.engine.outside import Address, Runs
from monarch_nb.actor.engine.ports import Port
from monarch_nb.config import patience

Item = TypeVar("Item")

EARLY_S = patience(3.0)
"""So long an actor is waited for, from the first message on that came before it."""


class Message:
    """A call of an endpoint, in an actor's mailbox.

    Attributes:
        endpoint: its name; "" asks only whether the actor was made.
        place: what part of the mesh was addressed; None for all of it.
        value: the arguments.
        sender, call: where the answer goes, and to what; 0 when none is wanted.
        port: what gets the response instead of the sender.
        caller, runs: as Execution's.
    """

    __slots__ = ("call", "caller", "endpoint", "place", "port", "runs", "sender", "value")

    def __init__(
        self,
        endpoint: str,
        place: Place | None,
        value: Value,
        sender: Address,
        call: int,
        port: Port[Any] | None,
        caller: str,
        runs: Runs,
    ) -> None:
        self.endpoint, self.place, self.value = endpoint, place, value
        self.sender, self.call, self.port = sender, call, port
        self.caller, self.runs = caller, runs

    def is_of(self, run_id: str) -> bool:
        """Whether it is sent in the name of a run; any when the id is empty."""
        return not run_id or any(run_id == each for each, *_ in self.runs.values())


class Mailbox(Generic[Item]):
    """One thread takes out, any may put in. Putting in is a few instructions, also when 10,000 wait.

    Args:
        loop: of the thread that takes out, when that has one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._items: deque[Item] = deque()
        self._urgent: deque[Item] = deque()
        self._loop = loop
        self._sleeps = False
        self._gate = allocate_lock()
        self._gate.acquire()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Put an item behind all others."""
        self._items.append(item)
        if self._sleeps:
            self._wake()

    def put_first(self, item: Item) -> None:
        """Put an item before all that were not put in so."""
        self._urgent.append(item)
        if self._sleeps:
            self._wake()

    def pop(self) -> Item | None:
        """Return the first item, if there is one."""
        try:
            return self._urgent.popleft() if self._urgent else self._items.popleft()
        except IndexError:
            return None

    def clear(self) -> list[Item]:
        """Take out all that was not put first: each item is taken out once, whoever else does."""
        items = []
        with contextlib.suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items

    def withdraw(self, is_meant: Callable[[Item], bool]) -> list[Item]:
        """Take out some items that were not put first, from any thread."""
        taken = []
        for item in self._items.copy():
            if is_meant(item):
                with contextlib.suppress(ValueError):  # its turn has come meanwhile
                    self._items.remove(item)
                    taken.append(item)
        return taken

    def get(self) -> Item:
        """Wait for the first item."""
        while True:
            item = self.pop()
            if item is not None:
                return item
            self._sleeps = True
            if not self._items and not self._urgent:  # looked at again: who puts in now wakes this thread
                self._gate.acquire()
            self._sleeps = False

    async def arrived(self) -> None:
        """Wait until there is an item, in a loop."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._sleeps = True
        try:
            if not self._items and not self._urgent:
                await self._waiter
        finally:
            self._sleeps, self._waiter = False, None

    def _wake(self) -> None:
        self._sleeps = False
        if self._loop is None:
            with contextlib.suppress(RuntimeError):  # another one woke it
                self._gate.release()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody takes anything out any more
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Early:
    """Messages that wait for their actor to be spawned: from another node they can overtake the spawn.

    Args:
        give_up: called, on a thread of its own, with the messages for which no actor came in time.
    """

    def __init__(self, give_up: Callable[[list[Message]], object]) -> None:
        self._give_up = give_up
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Message]] = {}

    def put(self, uid: str, message: Message) -> None:
        """Keep a message for an actor."""
        with self._lock:
            waiting = self._waiting.setdefault(uid, [])
            waiting.append(message)
            if len(waiting) > 1:
                return
        timer = threading.Timer(EARLY_S, lambda: self._give_up(self._take(uid, waiting)))
        timer.daemon = True
        timer.start()

    def take(self, uid: str) -> list[Message]:
        """Take out what waits for an actor, in order."""
        with self._lock:
            return self._waiting.pop(uid, [])

    def withdraw(self, run_id: str) -> list[Message]:
        """Take out what waits in the name of a run (empty: all)."""
        taken = []
        with self._lock:
            for uid, waiting in list(self._waiting.items()):
                taken += [each for each in waiting if each.is_of(run_id)]
                waiting[:] = [each for each in waiting if not each.is_of(run_id)]
                if not waiting:
                    del self._waiting[uid]
        return taken

    def _take(self, uid: str, waiting: list[Message]) -> list[Message]:
        """Take out what has waited since its timer was started."""
        with self._lock:
            return self._waiting.pop(uid) if self._waiting.get(uid) is waiting else []
