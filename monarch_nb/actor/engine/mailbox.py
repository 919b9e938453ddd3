"""An actor's messages, and where they wait, in their order, until its thread has time."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch_nb.actor.engine.handles import Place, PortAddress, abroad
from monarch_nb.actor.engine.messages import ANSWER, POST, POST_RAISED, RAISED, Value, traveller
from monarch_nb.actor.engine.outside import HERE, Address, Runs
from monarch_nb.config import patience

if TYPE_CHECKING:
    from monarch_nb.actor.engine.process import Process

R = TypeVar("R")


class Port(Generic[R]):
    """Sends values to the PortReceiver that it was made with, or as responses to a call.

    You can pass it to endpoints as an argument. Any thread can use it at any time.

    Attributes:
        return_undeliverable: as in Monarch, without effect here: values that can not be delivered are dropped.

    Example:
        >>> port, receiver = Channel.open()
        >>> port.send("as often as you like")
        >>> receiver.recv().get()
        'as often as you like'
        >>> port.exception(ValueError("no more"))  # what the next recv raises
    """

    def __init__(self, process: Process, target: PortAddress | None, *, once: bool = False) -> None:
        self._process, self._target, self._once = process, target, once
        self._lock, self._is_used = threading.Lock(), False
        self.return_undeliverable = True

    def send(self, obj: R) -> None:
        """Send a value. The values of one sender arrive in the order in which it sent them.

        Raises:
            RuntimeError: the channel is for one value only, and that was sent.
        """
        self._send(ANSWER, POST, obj)

    def exception(self, e: Exception) -> None:
        """Send an exception. The receiver raises it as it is."""
        self._send(RAISED, POST_RAISED, e)

    def at(self, rank: int) -> Port[R]:
        """Return the same port for a rank, whose number the receiver can ask for."""
        target = self._target and self._target._replace(rank=rank)
        return Port(self._process, target, once=self._once)

    def target_at(self, node: str) -> PortAddress | None:
        """Return where it sends to, as processes of a node know it."""
        target = self._target
        if target is None or target.address != HERE or not node:
            return target
        return target._replace(address=self._process.outside.home(node))

    def _send(self, answer: int, post: int, value: object) -> None:
        if self._target is None:
            return
        if self._once:
            with self._lock:
                if self._is_used:
                    raise RuntimeError("OncePortRef already used: the channel was opened for one value")
                self._is_used = True
        self._process.post(self._target, answer if self._target.answers else post, value)

    def __repr__(self) -> str:
        return f"<Port {self._target.number if self._target is not None else 'of nobody'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        target = self._target
        if target is not None:
            target = target._replace(address=abroad(target.address))
        return _arrived, (target, self._once)


def _arrived(target: PortAddress | None, once: bool) -> Port[Any]:
    goes = traveller()
    if goes is None:
        raise RuntimeError("a Port is unpickled only by actors: send it as an argument or a result")
    return Port(goes[0], target, once=once)


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


class Declared:
    """What a class has under the name of an endpoint; meshes of its actors have what can be called.

    Attributes:
        method: the function.
        is_explicit: whether it gets a port for its response.
        is_concurrent: whether the actor takes other messages meanwhile.
    """

    def __init__(self, method: Callable[..., Any], is_explicit: bool, is_concurrent: bool) -> None:
        self.method, self.is_explicit, self.is_concurrent = method, is_explicit, is_concurrent

    def __repr__(self) -> str:
        return f"<endpoint {self.method.__qualname__}>"


def find_method(kind: type, name: str) -> Declared:
    """Return an endpoint of a class.

    Raises:
        AttributeError: the class has none of that name, though that of the caller had.
    """
    found = inspect.getattr_static(kind, name, None)
    if not isinstance(found, Declared):
        raise AttributeError(
            f"{kind} has no endpoint {name!r}: is the class in the rank's environment another version?"
        )
    return found
