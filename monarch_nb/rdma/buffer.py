"""What users write: buffers, and transfers of several at once."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from typing import Any

from monarch_nb.actor.engine.handles import Places, abroad
from monarch_nb.actor.engine.outcomes import Outcome
from monarch_nb.actor.engine.outside import HERE
from monarch_nb.actor.engine.process import process
from monarch_nb.actor.future import Future, future_of
from monarch_nb.config import MONARCH_CALLER_VARIABLE
from monarch_nb.errors import SupervisionError, UsageError
from monarch_nb.rdma.backend import get_rdma_backend
from monarch_nb.rdma.kept import answer_drop, keep, life
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.transfer import Operation, Remote, Transfer

TIMEOUT_S = 60


def _refuse_with_monarch() -> None:
    """Raise UsageError in a process of Monarch's own engine: nobody could reach memory there, nor it others'."""
    if MONARCH_CALLER_VARIABLE in os.environ:
        raise UsageError(
            "monarch_nb.rdma works in ranks and clients, and this is a process of Monarch's own engine: "
            "from monarch.rdma import RDMABuffer"
        )


class RDMABuffer:
    """Memory of this process that others may read and write while this process goes on with its work.

    Nothing is copied when you make it. Send it to actors as an argument or result. It keeps the memory until you drop
    it, or the actor that made it has ended.

    Args:
        data: a tensor or a memoryview, of one dimension and contiguous. For other tensors write
            `tensor.view(torch.uint8).flatten()`, which is a view of the same memory.

    Raises:
        ValueError: `data` is empty, has other dimensions, or is not contiguous.
        TypeError: `data` is something else.
        UsageError: this is a process of Monarch's own engine, which has buffers of its own.

    Example:
        >>> class Trainer(Actor):
        ...     @endpoint
        ...     def weights(self):
        ...         return {name: RDMABuffer(each.view(torch.uint8).flatten())
        ...                 for name, each in self.model.state_dict().items()}
    """

    def __init__(self, data: Any) -> None:
        _refuse_with_monarch()
        memory = Memory(data)
        if not memory.size_bytes:
            raise ValueError("a buffer needs at least one byte, and this memory is empty")
        home = process()
        place = keep(memory, home.owner())
        self._remote = Remote(HERE, home.title, socket.gethostname(), life(), place, memory.size_bytes)

    @property
    def backend(self) -> str:
        """The same as `get_rdma_backend()`."""
        return get_rdma_backend()

    @property
    def owner(self) -> str:
        """Whose memory it is, for people: "rank 3 on node0"."""
        return self._remote.owner

    def size(self) -> int:
        """Return the size in bytes."""
        return self._remote.size_bytes

    def read_into(self, dst: Any, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Copy the buffer into memory of this process. What the owner writes meanwhile may be in it, or not.

        Args:
            dst: a tensor or a memoryview, of one dimension, contiguous and at least as long as the buffer.
            timeout: the longest time, in seconds.

        Returns:
            a future. It raises `BufferFailed` when the buffer or its owner is gone, and `TimeoutError`.

        Raises:
            ValueError: `dst` is too short, or no memory of one dimension.

        Example:
            >>> buffer.read_into(weights.view(torch.uint8).flatten()).get()  # or: await buffer.read_into(…)
        """
        return RDMAAction().read_remote(dst, self).submit(timeout=timeout)

    def write_from(self, src: Any, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Copy memory of this process into the buffer, from its first byte on. Do not change it until that is done.

        Args:
            src: a tensor or a memoryview, of one dimension, contiguous and at most as long as the buffer.
            timeout: the longest time, in seconds.

        Returns:
            as `read_into`.

        Raises:
            ValueError: `src` is too long, or no memory of one dimension.

        Example:
            >>> buffer.write_from(memoryview(b"new")).get()
        """
        return RDMAAction().write_remote(self, src).submit(timeout=timeout)

    def drop(self) -> Future[None]:
        """Let the owner forget the buffer. Later transfers fail. You can call it anywhere, and again; an owner that is
        gone has forgotten it.

        Example:
            >>> buffer.drop().get()
        """
        if self._remote.life == life():
            answer_drop(self._remote.life, self._remote.place.mark)
            outcome = Outcome(lambda _: None)
            outcome.resolve(None)
            return future_of(outcome)
        asked = process().ask(Places([self._remote.address]), answer_drop, self._remote.life, self._remote.place.mark)
        dropped = Outcome(_dropped)
        asked.outcome.when_resolved(lambda: dropped.resolve(asked.outcome))
        return future_of(dropped, asked)

    def __reduce__(self) -> tuple[Any, ...]:
        address = abroad(self._remote.address)
        if address == HERE:
            address = process().outside.home("")
        return _travelled, (tuple(self._remote._replace(address=address)),)

    def __repr__(self) -> str:
        return f"<RDMABuffer of {self.size():,} bytes of {self.owner}>"


class RDMAAction:
    """Several transfers, begun together. Do not name the same memory of this process twice, unless all only read it.

    Example:
        >>> action = RDMAAction()
        >>> for name, buffer in buffers.items():
        ...     action.read_remote(weights[name].view(torch.uint8).flatten(), buffer)
        >>> action.submit(timeout=10).get()
    """

    def __init__(self) -> None:
        _refuse_with_monarch()
        self._operations: list[Operation] = []

    def read_remote(self, dst: Any, src: RDMABuffer) -> RDMAAction:
        """Add a read, as `RDMABuffer.read_into`. Raises as that, at once."""
        memory = Memory(dst)
        if memory.size_bytes < src.size():
            raise ValueError(f"dst has {memory.size_bytes:,} bytes, too few for the {src.size():,} of {src.owner}")
        if not memory.is_writable:
            raise ValueError("dst is read-only")
        self._operations.append(Operation(src._remote, memory, True))
        return self

    def write_remote(self, dst: RDMABuffer, src: Any) -> RDMAAction:
        """Add a write, as `RDMABuffer.write_from`. Raises as that, at once."""
        memory = Memory(src)
        if memory.size_bytes > dst.size():
            raise ValueError(f"src has {memory.size_bytes:,} bytes, too many for the {dst.size():,} of {dst.owner}")
        self._operations.append(Operation(dst._remote, memory, False))
        return self

    def submit(self, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Begin all transfers. You can call it again.

        Args:
            timeout: the longest time for all, in seconds.

        Returns:
            a future that is resolved when all are done. It raises the first error; its notes have the others.

        Raises:
            ValueError: the timeout is negative or not finite.
        """
        if not 0 <= timeout < math.inf:
            raise ValueError(f"invalid timeout {timeout}: expected a non-negative, finite number of seconds")
        transfer = Transfer(process(), self._operations, timeout)
        transfer.begin()
        return future_of(transfer.outcome, transfer.call)


def _dropped(answers: Outcome) -> None:
    with contextlib.suppress(SupervisionError):
        answers.value()


def _travelled(remote: tuple[Any, ...]) -> RDMABuffer:
    buffer = RDMABuffer.__new__(RDMABuffer)
    buffer._remote = Remote(*remote)
    return buffer
