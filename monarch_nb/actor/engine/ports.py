"""Ports: where values are sent, one by one."""

from __future__ import annotations

import threading
from typing import Any, Generic, Protocol, TypeVar, cast

from monarch_nb.actor.engine.handles import PortAddress, abroad
from monarch_nb.actor.engine.messages import ANSWER, POST, POST_RAISED, RAISED, Traveller, traveller
from monarch_nb.actor.engine.outside import HERE

R = TypeVar("R")


class Postman(Traveller, Protocol):
    """What a port needs of its process."""

    def post(self, target: PortAddress, kind: int, value: Any) -> None:
        """Send a value to a port."""


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

    def __init__(self, process: Postman, target: PortAddress | None, *, once: bool = False) -> None:
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
    return Port(cast(Postman, goes[0]), target, once=once)
