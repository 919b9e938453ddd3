"""Channels, and responses of endpoints that come one by one."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monarch_nb.actor.actor_mesh import ActorEndpoint
from monarch_nb.actor.endpoints import Endpoint
from monarch_nb.actor.engine.calls import Answer, Outcome
from monarch_nb.actor.engine.mailbox import Port
from monarch_nb.actor.engine.messages import POST_RAISED
from monarch_nb.actor.engine.process import process
from monarch_nb.actor.future import Future, future_of

__all__ = ["Channel", "Port", "PortReceiver", "RankedPortReceiver", "send"]

R = TypeVar("R")


class _Arrivals:
    """What came to a port, until somebody looks at it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a receipt may be freed anywhere, also with it held
        self._came: deque[tuple[int, Answer]] = deque()
        self._waiting: deque[weakref.ref[_Receipt]] = deque()

    def receive(self, rank: int, answer: Answer) -> None:
        """Give what arrives to the first who waits."""
        with self._lock:
            self._came.append((rank, answer))
        self._hand_out()

    def _hand_out(self) -> None:
        while True:
            with self._lock:
                receipt = None
                while self._waiting and self._came and receipt is None:
                    receipt = self._waiting.popleft()()  # None: who asked has gone, perhaps after a timeout
                if receipt is None:
                    return
                came = self._came.popleft()
            receipt.resolve(came)

    def wait(self, receipt: _Receipt) -> None:
        """Let a receipt have what comes next."""
        with self._lock:
            self._waiting.append(weakref.ref(receipt))
        self._hand_out()

    def take_back(self, came: tuple[int, Answer]) -> None:
        """Keep what nobody looked at for the next who asks."""
        with self._lock:
            self._came.appendleft(came)
        self._hand_out()


class _Receipt(Outcome):
    """A value to come; one that nobody looked at goes back."""

    __slots__ = ("_arrivals",)

    def __init__(self, arrivals: _Arrivals, finish: Callable[[tuple[int, Answer]], Any]) -> None:
        super().__init__(finish)
        self._arrivals = arrivals

    def __del__(self) -> None:
        if self.is_resolved() and self._finish is not None:
            self._arrivals.take_back(self._raw)


class PortReceiver(Generic[R]):
    """Receives the values that are sent to a Port. It stays in the process that opened the channel.

    Example:
        >>> port, receiver = Channel.open()
        >>> counters.report.broadcast(port)
        >>> values = [receiver.recv().get(timeout=60) for _ in range(8)]
    """

    def __init__(self, arrivals: _Arrivals, once: bool) -> None:
        self._arrivals, self._once, self._is_used = arrivals, once, False

    def recv(self) -> Future[R]:
        """Return the future of the next value. If you drop a future before its value came, for example after a timeout,
        the next future gets the value.

        Raises:
            ValueError: the channel is for one value, and you have asked for it.
        """
        if self._once and self._is_used:
            raise ValueError("OncePort is already used")
        self._is_used = True
        receipt = _Receipt(self._arrivals, self._finish)
        self._arrivals.wait(receipt)
        return future_of(receipt)

    @staticmethod
    def _finish(came: tuple[int, Answer]) -> Any:
        value = came[1].value.load()
        if came[1].kind == POST_RAISED:
            raise value
        return value

    def ranked(self) -> RankedPortReceiver[R]:
        """Return a receiver of the same values, together with the ranks that sent them."""
        return RankedPortReceiver(self._arrivals, self._once)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a PortReceiver: it stays in the process that opened the channel; send the Port")


class RankedPortReceiver(PortReceiver[R]):
    """Receives pairs `(rank, value)`. The rank is that of the responding actor in the mesh that was called.

    Example:
        >>> port, receiver = Channel.open_ranked()
        >>> send(counters.value, (), {}, port)
        >>> rank, value = receiver.recv().get()
    """

    @staticmethod
    def _finish(came: tuple[int, Answer]) -> Any:
        return came[0], PortReceiver._finish(came)


class Channel(Generic[R]):
    """Makes ports, to which actors send values one by one.

    Example:
        >>> port, receiver = Channel[int].open()
        >>> producer.produce.broadcast(port)
        >>> receiver.recv().get()
    """

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """Open a channel. Return a port, to which any process can send, and the receiver of its values.

        Args:
            once: the channel is for one value only.
        """
        arrivals, here = _Arrivals(), process()
        target = here.open_port(arrivals.receive)
        port: Port[Any] = Port(here, target, once=once)
        receiver: PortReceiver[Any] = PortReceiver(arrivals, once)
        weakref.finalize(receiver._arrivals, here.close_port, target.number).atexit = False
        return port, receiver

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], RankedPortReceiver[Any]]:
        """Like `open`, with a receiver of pairs `(rank, value)`."""
        port, receiver = Channel.open(once)
        return port, receiver.ranked()


def send(
    endpoint: Endpoint,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: str = "all",
) -> None:
    """Call an endpoint, and have every response sent to a port.

    Args:
        endpoint: of an ActorMesh, as in `counters.add`.
        args, kwargs: the arguments of the call.
        port: gets the value or exception of each rank. With None it is like `broadcast`.
        selection: "all" for all ranks, or "choose" for a random one.

    Raises:
        ValueError: `selection` is neither. TypeError: `endpoint` is no endpoint, or the arguments are wrong.

    Example:
        >>> port, receiver = Channel.open()
        >>> send(counters.add, (1,), {}, port, selection="choose")
        >>> value = receiver.recv().get()
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"invalid selection {selection!r}: expected 'all' or 'choose'")
    if not isinstance(endpoint, ActorEndpoint):
        raise TypeError(f"expected an endpoint of a mesh of actors, not {endpoint!r}")
    endpoint.send_to(port, args, kwargs, chosen=selection == "choose")
