"""Buffers, and transfers of one or several at once: from the beginning of a read or a write until the bytes are where
they are wanted.

Memory is bytes of this process, where they are: those of a tensor, or of a memoryview. A process keeps the buffers
that it owns until they are dropped, and answers what others ask of them beside its actors (`Process.ask`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import pickle
import secrets
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from monarch_nb import sizes
from monarch_nb.actor.engine.calls import Call, Outcome
from monarch_nb.actor.engine.handles import Places, abroad
from monarch_nb.actor.engine.outside import HERE, Address
from monarch_nb.actor.engine.process import Process, process
from monarch_nb.actor.engine.runner import Runner
from monarch_nb.actor.future import Future, future_of
from monarch_nb.config import MONARCH_CALLER_VARIABLE, SOCKETS
from monarch_nb.errors import ActorError, BufferFailed, SupervisionError, UsageError
from monarch_nb.shape import Extent


class RDMAReadTransferWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


class RDMAWriteTransferWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


class RDMATcpFallbackWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


def get_rdma_backend() -> str:
    """Return "monarch_nb". In Monarch it is "ibverbs", "tcp" or "none".

    Example:
        >>> get_rdma_backend()
        'monarch_nb'
    """
    return "monarch_nb"


def is_ibverbs_available() -> bool:
    """Return False: no bytes go over ibverbs here. Buffers work without it.

    Example:
        >>> is_ibverbs_available()
        False
    """
    return False


def is_rdma_available() -> bool:
    """Like `is_ibverbs_available`. Monarch has deprecated this name.

    Example:
        >>> is_rdma_available()  # doctest: +SKIP
        False
    """
    warnings.warn("is_rdma_available is deprecated: use is_ibverbs_available()", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()


class Gone(Exception):
    """This process does not have the buffer."""


class _Kept(NamedTuple):
    """A buffer of this process.

    Attributes:
        at_end: of the actor that made it.
        drop: what is in `at_end`.
    """

    memory: Memory
    at_end: list[Callable[[], object]]
    drop: Callable[[], object]


_kept: dict[str, _Kept] = {}


def keep(memory: Memory, owner: Runner | None) -> str:
    """Own a buffer until it is dropped, or the actor that makes it has ended; return its key, which no other has."""
    key = secrets.token_hex(8)
    kept = _Kept(memory, owner.at_end if owner is not None else [], functools.partial(answer_drop, key))
    _kept[key] = kept
    kept.at_end.append(kept.drop)
    return key


def _memory_of(key: str) -> Memory:
    kept = _kept.get(key)
    if kept is None:
        raise Gone("the buffer was dropped, its actor has ended, or its process was restarted: make another one")
    return kept.memory


# What others ask, by the names of these functions.


def answer_read(key: str) -> pickle.PickleBuffer:
    """Return the bytes of a buffer. Raises Gone."""
    return pickle.PickleBuffer(_memory_of(key).read())


def answer_write(key: str, content: memoryview) -> None:
    """Fill a buffer. Raises Gone."""
    _memory_of(key).write(content)


def answer_drop(key: str) -> None:
    """Let a buffer go; fine when it has gone."""
    kept = _kept.pop(key, None)
    if kept is not None:
        kept.at_end.remove(kept.drop)


class Remote(NamedTuple):
    """A buffer, for those who do not own it.

    Attributes:
        address: of its owner.
        who, host: its owner, for people: "rank 3", and the name of its machine.
        key: by which its owner knows it.
        size_bytes: how long it is.
    """

    address: Address
    who: str
    host: str
    key: str
    size_bytes: int

    @property
    def owner(self) -> str:
        """The owner with its node, for people: nodes of a local pool are told by their directories."""
        sockets = PurePath(self.address.node.partition(":")[2]).parent
        return f"{self.who} on {sockets.parent.name if sockets.name == SOCKETS else self.host}"


class Operation(NamedTuple):
    """What is to be done.

    Attributes:
        remote: the buffer.
        local: the memory of this process.
        is_read: whether bytes go from there to here.
    """

    remote: Remote
    local: Memory
    is_read: bool

    @property
    def size_bytes(self) -> int:
        """How much goes from there to here, or from here to there."""
        return self.remote.size_bytes if self.is_read else self.local.size_bytes

    @property
    def title(self) -> str:
        """What it is, for people."""
        read, direction = ("read", "from") if self.is_read else ("write", "to")
        return f"{read} of {sizes.size(self.size_bytes)} {direction} {self.remote.owner}"


class Transfer:
    """Operations that are done together.

    Args:
        home: the engine of this process.
        operations: what is to be done.
        timeout_s: after it they fail, and touch no memory of this process any more.

    Attributes:
        call: what people who wait for it are told.
        outcome: resolved when the last one is done.
    """

    def __init__(self, home: Process, operations: Sequence[Operation], timeout_s: float) -> None:
        self.outcome = Outcome(_finish)
        title = operations[0].title if len(operations) == 1 else f"{len(operations)} transfers"
        places = Places([operation.remote.address for operation in operations])
        self.call = Call(title, None, places, Extent({"transfers": len(operations)}))
        self._home, self._timeout_s = home, timeout_s
        self._lock = threading.Lock()
        self._left = dict(enumerate(operations))
        self._errors: list[Exception] = []

    def begin(self) -> None:
        """Begin all."""
        if not self._left:
            self.outcome.resolve(self._errors)
            return
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.daemon = True
        timer.start()
        self.outcome.when_resolved(timer.cancel)
        for number, operation in list(self._left.items()):
            self._home.aside(functools.partial(self._begin, number, operation))

    def _begin(self, number: int, operation: Operation) -> None:
        """Ask the owner for the bytes, or send it those of this process."""
        key, places = operation.remote.key, Places([operation.remote.address])
        try:
            if operation.is_read:
                asked = self._home.ask(places, answer_read, key).outcome
            else:
                asked = self._home.ask(places, answer_write, key, pickle.PickleBuffer(operation.local.read())).outcome
        except Exception as error:  # noqa: BLE001 -- for who waits
            self._done(number, error)
        else:
            # Not where mail arrives.
            asked.when_resolved(lambda: self._home.aside(lambda: self._answered(number, operation, asked)))

    def _answered(self, number: int, operation: Operation, asked: Outcome) -> None:
        """Take what was answered. With the lock: nothing is copied after the time is up."""
        try:
            (content,) = asked.value()
            with self._lock:
                if number in self._left and operation.is_read:
                    operation.local.write(memoryview(content))
        except ActorError as error:
            failure = error.failures.get(0)
            self._done(number, _failed(operation, str(failure.exception) if failure is not None else error.message))
        except Exception as error:  # noqa: BLE001 -- for who waits
            self._done(number, error)
        else:
            self._done(number, None)

    def _done(self, number: int, error: Exception | None) -> None:
        with self._lock:
            if self._left.pop(number, None) is None:
                return
            self.call.unanswered.discard(number)
            self._errors += [error] if error is not None else []
            is_last = not self._left
        if is_last:
            self.outcome.resolve(self._errors)

    def _give_up(self) -> None:
        with self._lock:
            late, self._left = self._left, {}
        for operation in late.values():
            text = f"the {operation.title} took longer than {self._timeout_s:g} s: %mesh stacks shows what runs there"
            self._errors.append(TimeoutError(text))
        self.outcome.resolve(self._errors)


def _failed(operation: Operation, reason: str) -> BufferFailed:
    return BufferFailed(transfer=operation.title, owner=operation.remote.owner, reason=reason)


def _finish(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and {other}")
        raise errors[0]


class Memory:
    """Bytes that others may read and write. It keeps the tensor or the memoryview alive.

    Args:
        data: a tensor or a memoryview, of one dimension and contiguous.

    Attributes:
        size_bytes: how many.

    Raises:
        TypeError: `data` is neither.
        ValueError: `data` has other dimensions, or is not contiguous.
    """

    def __init__(self, data: Any) -> None:
        torch: Any = sys.modules.get("torch")
        self._tensor: Any = None
        if isinstance(data, memoryview):
            _check(data.ndim, data.c_contiguous, "memoryview", "cast('B')")
            self._view = data.cast("B")
        elif torch is not None and isinstance(data, torch.Tensor):
            _check(data.dim(), data.is_contiguous(), "tensor", "view(torch.uint8).flatten()")
            self._tensor = data.detach()
            self._view = _view(self._tensor) if data.device.type == "cpu" else memoryview(b"")
        else:
            raise TypeError(f"a buffer is made of a tensor or of a memoryview, not of {type(data).__name__}")
        self.size_bytes: int = self._view.nbytes if self._is_here() else data.numel() * data.element_size()

    def read(self) -> memoryview:
        """Return the bytes: as they change where they are in main memory, else a copy."""
        return self._view if self._is_here() else _view(self._tensor.cpu())

    def write(self, content: memoryview) -> None:
        """Replace the first bytes. Other threads go on meanwhile.

        Raises:
            TypeError: they are read-only.
            ValueError: there are fewer than `content` has.
        """
        if content.nbytes > self.size_bytes:
            raise ValueError(f"{content.nbytes:,} bytes do not fit into {self.size_bytes:,}")
        if not self._is_here():
            torch: Any = sys.modules["torch"]
            data = torch.frombuffer(bytearray(content) if content.readonly else content, dtype=torch.uint8)
            self._tensor.view(torch.uint8)[: content.nbytes].copy_(data)
        elif self._view.readonly or content.readonly or not content.nbytes:
            self._view[: content.nbytes] = content
        else:
            ctypes.memmove(_address(self._view), _address(content), content.nbytes)

    @property
    def is_writable(self) -> bool:
        """Whether `write` works."""
        return not (self._is_here() and self._view.readonly)

    def _is_here(self) -> bool:
        return self._tensor is None or self._tensor.device.type == "cpu"


def _check(dimensions: int, is_contiguous: bool, kind: str, remedy: str) -> None:
    if dimensions != 1 or not is_contiguous:
        what = f"{dimensions} dimensions" if dimensions != 1 else "gaps between its elements"
        raise ValueError(f"a buffer needs a contiguous {kind} of one dimension, and this one has {what}: see .{remedy}")


def _view(tensor: Any) -> memoryview:
    size_bytes = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())
    array.tensor = tensor  # lives as long as a view of it
    return memoryview(array).cast("B")


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


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
        key = keep(memory, home.owner())
        self._remote = Remote(HERE, home.title, socket.gethostname(), key, memory.size_bytes)

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
        """Let the owner forget the buffer. Later transfers fail; earlier ones have their bytes when the future is
        resolved. You can call it anywhere, and again; an owner that is gone has forgotten it.

        Example:
            >>> buffer.drop().get()
        """
        asked = process().ask(Places([self._remote.address]), answer_drop, self._remote.key)
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
