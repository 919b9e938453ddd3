"""A read or a write, from its beginning until the bytes are where they are wanted."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from monarch_nb import sizes
from monarch_nb.actor.engine.calls import Call
from monarch_nb.actor.engine.handles import Places
from monarch_nb.actor.engine.outcomes import Outcome
from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.engine.process import Process
from monarch_nb.config import SOCKETS
from monarch_nb.errors import ActorError, BufferFailed
from monarch_nb.rdma.kept import Gone, answer_fetch, answer_read, answer_write, life, use
from monarch_nb.rdma.kernel import Mark, Place, copy
from monarch_nb.rdma.memory import Memory
from monarch_nb.shape import Extent

_AT_ONCE_BYTES = 1 << 20
"""Up to here the caller copies; more is copied beside it."""

Question = tuple[Callable[..., Any], tuple[Any, ...]]
"""What the owner is asked: a function of `kept`, and its arguments."""
Steps = Generator[Question, Any, None]


class Remote(NamedTuple):
    """A buffer, for those who do not own it.

    Attributes:
        address: of its owner.
        who, host: its owner, for people: "rank 3", and the name of its machine.
        life: of its owner.
        place: where it is, for processes of the same node.
        size_bytes: how long it is.
    """

    address: Address
    who: str
    host: str
    life: str
    place: Place
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

    def steps(self, is_near: bool) -> Steps:
        """Do it, where `is_near` says that the owner is on this node; what the owner has to do for it is yielded."""
        remote, local, key = self.remote, self.local, self.remote.place.mark
        if remote.life == life():
            use(remote.life, key, lambda own: _copy_here(own, local) if self.is_read else _copy_here(local, own))
        elif self.is_read:
            if not (is_near and copy(remote.place, local.address, remote.size_bytes)):
                local.write(memoryview((yield answer_read, (remote.life, key))))
        elif not (is_near and (yield from self._fetched())):
            yield answer_write, (remote.life, key, pickle.PickleBuffer(local.read()))

    def _fetched(self) -> Generator[Question, Any, bool]:
        """Have the owner fetch the bytes: it knows, as long as it does, that its buffer is still there."""
        if not self.local.address or not self.remote.place.address:
            return False
        mark = Mark()
        place = mark.place(self.local.address)
        try:
            return bool((yield answer_fetch, (self.remote.life, self.remote.place.mark, place, self.local.size_bytes)))
        finally:
            mark.remove()


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
        """Begin all; what is small and on this node is done when this returns."""
        small = [each for each in self._left.items() if each[1].size_bytes <= _AT_ONCE_BYTES]
        large = [each for each in self._left.items() if each[1].size_bytes > _AT_ONCE_BYTES]
        for number, operation in small:  # first: a copy holds the lock
            self._begin(number, operation)
        for number, operation in large:
            self._home.aside(functools.partial(self._begin, number, operation))
        if not self._left:
            self.outcome.resolve(self._errors)
        if not self.outcome.is_resolved():
            timer = threading.Timer(self._timeout_s, self._give_up)
            timer.daemon = True
            timer.start()
            self.outcome.when_resolved(timer.cancel)

    def _begin(self, number: int, operation: Operation) -> None:
        try:
            node = operation.remote.address.node
            is_near = self._home.outside.home(node).node == node
        except Exception as error:  # noqa: BLE001 -- for who waits
            self._done(number, error)
        else:
            self._step(number, operation, operation.steps(is_near), None)

    def _step(self, number: int, operation: Operation, steps: Steps, answers: Outcome | None) -> None:
        """Go on with what was answered, to the next question. With the lock: nothing is copied after the time is up."""
        try:
            with self._lock:
                if number not in self._left:
                    steps.close()
                    return
                function, arguments = steps.send(answers.value()[0] if answers is not None else None)
            asked = self._home.ask(Places([operation.remote.address]), function, *arguments).outcome
        except StopIteration:
            self._done(number, None)
        except ActorError as error:
            steps.close()
            failure = error.failures.get(0)
            self._done(number, _failed(operation, str(failure.exception) if failure is not None else error.message))
        except Gone as error:
            self._done(number, _failed(operation, str(error)))
        except Exception as error:  # noqa: BLE001 -- for who waits
            self._done(number, error)
        else:
            # Not where mail arrives.
            asked.when_resolved(lambda: self._home.aside(lambda: self._step(number, operation, steps, asked)))

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


def _copy_here(source: Memory, target: Memory) -> None:
    target.write(source.read())


def _failed(operation: Operation, reason: str) -> BufferFailed:
    return BufferFailed(transfer=operation.title, owner=operation.remote.owner, reason=reason)


def _finish(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and {other}")
        raise errors[0]
