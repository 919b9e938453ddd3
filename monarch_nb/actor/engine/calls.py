"""Calls of this process that are not answered by all ranks yet."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from monarch_nb.actor.engine.failing import Failed
from monarch_nb.actor.engine.messages import ANSWER, FAILED, RAISED, Plain, Value
from monarch_nb.actor.engine.outside import Address, CallState, Questions, Runs, Tag
from monarch_nb.config import cadence
from monarch_nb.errors import ActorError, SupervisionError
from monarch_nb.ground import interrupting
from monarch_nb.ground.flag import LOOK_S, Flag
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.shape import Extent


class Outcome:
    """Resolved once with something raw, of which the first who looks makes the value: it may have to be unpickled,
    which is not done where messages arrive.

    Args:
        finish: makes the value, or raises what who asks for it is to get.
    """

    __slots__ = ("__weakref__", "_callbacks", "_error", "_finish", "_flag", "_lock", "_raw", "_value")

    def __init__(self, finish: Callable[[Any], Any]) -> None:
        self._finish: Callable[[Any], Any] | None = finish
        self._flag = Flag()
        self._lock = Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._raw: Any = None
        self._value: Any = None
        self._error: BaseException | None = None

    def is_resolved(self) -> bool:
        """Whether it has come."""
        return self._flag.is_set()

    def resolve(self, raw: Any) -> None:
        """Give it; later ones are ignored. From any thread."""
        with self._lock:
            if self._flag.is_set():
                return
            self._raw = raw
            self._flag.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_resolved(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the thread that resolves it, or now if that has been. It must not raise."""
        with self._lock:
            if not self._flag.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], object]) -> None:
        """Do not call `callback` any more."""
        with self._lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def wait(self, timeout_s: float | None = None, questions: Questions | None = None) -> bool:
        """Wait until it has come, or the time is up, or the thread is interrupted; return whether it has.

        Args:
            questions: are answered meanwhile, which is not part of the time.
        """
        if questions is None or self._flag.is_set():
            return _wait(self._flag, timeout_s)
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        news = Flag()
        self.when_resolved(news.set)
        questions.attend(news.set)
        try:
            while _wait(news, until_s - time.monotonic()) and not self._flag.is_set():
                news.clear()
                if not self._flag.is_set():  # else it has come just before
                    asked_s = time.monotonic()
                    questions.answer()
                    until_s += time.monotonic() - asked_s
        finally:
            questions.leave(news.set)
            self.forget(news.set)
        return self._flag.is_set()

    def value(self) -> Any:
        """Return the value of a resolved one, or raise what it is."""
        with self._lock:
            if self._finish is not None:
                finish, raw = self._finish, self._raw
                try:
                    self._value = finish(raw)
                except Exception as error:  # noqa: BLE001 -- kept for whoever asks again
                    self._error = error
                self._finish = self._raw = None
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value


def _wait(flag: Flag, timeout_s: float | None) -> bool:
    """Wait for a flag as anything that Ctrl-C, or what interrupts the work of this thread, ends."""
    if timeout_s == math.inf:
        timeout_s = None
    interrupt = interrupting.current()
    if interrupt is None or flag.is_set():
        return flag.wait(timeout_s)
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not flag.wait(min(LOOK_S, max(0.0, until_s - time.monotonic()))):
        interrupt.check()
        if time.monotonic() >= until_s:
            return False
    return True


AFTER_DEATH_S = cadence(0.5)
"""How long after the first death a call waits for its other ranks: these may wait for the dead one for ever."""


class Answer(NamedTuple):
    """What a rank answered: ANSWER, FAILED or RAISED, and what of."""

    kind: int
    value: Value


class Call:
    """A call, from its sending until the last rank has answered.

    Args:
        title: "trainers.step".
        tag: in whose name.
        places: where the ranks of the addressed mesh are.
        extent: of that mesh.
    """

    is_lasting = False
    """Whether it is answered when actors end."""

    def __init__(self, title: str, tag: Tag | None, places: Sequence[Address], extent: Extent) -> None:
        self.number = 0
        self.title, self.tag, self.places, self.extent = title, tag, places, extent
        self.unanswered = set(range(len(places)))
        self.started_s = time.monotonic()
        self.waits_for_itself: tuple[str, int] | None = None  # the caller's uid and rank, if it is to answer itself

    def take(self, rank: int, answer: Answer) -> Callable[[], object] | None:
        """Note an answer, with the engine's lock held; return what is to be called without it."""
        raise NotImplementedError

    def give_up(self) -> Callable[[], object] | None:
        """Note that nobody will answer any more, as `take`."""
        return None

    def ranks_at(self, node: str, processes: Sequence[str] | None = None) -> list[int]:
        """Return the ranks that have not answered of a node, or of processes there."""
        return [
            rank
            for rank in self.unanswered
            if self.places[rank].node == node and (processes is None or self.places[rank].process in processes)
        ]

    def _failed(self, failures: dict[int, Failed], values: dict[int, Any]) -> ActorError:
        if self.tag is not None and any(failed.is_interrupt for failed in failures.values()):
            self.tag.was_interrupted()
        return failed_call(self.title, self.extent, failures, values)

    @property
    def runs(self) -> Runs:
        """In whose name it was called."""
        return self.tag.runs if self.tag is not None else {}

    def state(self) -> CallState:
        """Return it for people who ask."""
        unanswered = {rank: self.places[rank] for rank in sorted(self.unanswered)}
        return CallState(self.number, self.title, self.runs, self.started_s, unanswered)


class Gather(Call):
    """One whose answers are wanted all at once.

    Args:
        value: makes the result of what the ranks returned, in their order.
    """

    def __init__(
        self,
        title: str,
        tag: Tag | None,
        places: Sequence[Address],
        extent: Extent,
        value: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(title, tag, places, extent)
        self.outcome = Outcome(self._finish)
        self._value = value
        self._answers: dict[int, Answer] = {}

    def take(self, rank: int, answer: Answer) -> Callable[[], object] | None:
        """As Call's."""
        self._answers[rank] = answer
        return None if self.unanswered else lambda: self.outcome.resolve(self._answers)

    def give_up(self) -> Callable[[], object] | None:
        """As Call's."""
        return lambda: self.outcome.resolve(self._answers)

    def _finish(self, answers: dict[int, Answer]) -> Any:
        values: dict[int, Any] = {}
        failures: dict[int, Failed] = {}
        for rank, answer in sorted(answers.items()):
            if answer.kind == RAISED:
                raise answer.value.load()
            if answer.kind == FAILED:
                failures[rank] = answer.value.load()
            else:
                values[rank] = answer.value.load()
        if failures or len(values) < len(self.places):
            raise self._failed(failures, values)
        return self._value(list(values.values()))


class Ending(Gather):
    """One that asks actors to end: those that are dead have."""

    def __init__(self, title: str, places: Sequence[Address]) -> None:
        super().__init__(title, None, places, Extent({"actors": len(places)}), lambda _: None)

    def _finish(self, answers: dict[int, Answer]) -> None:
        return None


class Stream(Call):
    """One whose answers are wanted as they come, each as an outcome of its own."""

    def __init__(self, title: str, tag: Tag | None, places: Sequence[Address], extent: Extent) -> None:
        super().__init__(title, tag, places, extent)
        self.outcomes = [Outcome(self._finish) for _ in places]
        self._came = 0

    def take(self, rank: int, answer: Answer) -> Callable[[], object] | None:
        """As Call's."""
        outcome = self.outcomes[self._came]
        self._came += 1
        return lambda: outcome.resolve((rank, answer))

    def _finish(self, came: tuple[int, Answer]) -> Any:
        rank, answer = came
        if answer.kind == RAISED:
            raise answer.value.load()
        if answer.kind == FAILED:
            raise self._failed({rank: answer.value.load()}, {})
        return answer.value.load()


class Lifetime(Call):
    """One that actors answer when they end.

    Args:
        ended: called with a rank and how it failed; None for one that was stopped.
    """

    is_lasting = True

    def __init__(
        self,
        title: str,
        places: Sequence[Address],
        extent: Extent,
        ended: Callable[[int, Failed | None], object],
    ) -> None:
        super().__init__(title, None, places, extent)
        self._ended = ended

    def take(self, rank: int, answer: Answer) -> Callable[[], object] | None:
        """As Call's."""
        failed = answer.value.load() if answer.kind == FAILED else None
        return lambda: self._ended(rank, failed)


def failed_call(title: str, extent: Extent, failures: dict[int, Failed], values: dict[int, Any]) -> ActorError:
    """Return the error of a call that some ranks failed, or did not answer."""
    total = extent.size
    ranks = f" on {name_ranks(failures)} of {total}" if total > 1 else ""
    lacking = [rank for rank in range(total) if rank not in failures and rank not in values]
    late = f" {name_ranks(lacking)} had not answered {AFTER_DEATH_S:g} s after that." if lacking and failures else ""
    is_over = any(failed.kind in ("died", "stopped") for failed in failures.values())
    kind = SupervisionError if is_over else ActorError
    if failures and all(failed.kind == "interrupted" for failed in failures.values()):
        what = f"Actor call {title} was interrupted{ranks}."
    else:
        what = f"Actor call {title} failed{ranks}."
    return kind(what + late, title, [failed.at(rank, extent) for rank, failed in failures.items()], values)


class Calls:
    """All of a process. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        # A restarted rank has the address of the one before it, and may yet get an answer that was meant for that one.
        self._next = 1 + secrets.randbits(48)

    def add(self, call: Call) -> int:
        """Number a call and wait for its answers; return the number."""
        with self._lock:
            call.number = self._next
            self._next += 1
            self._calls[call.number] = call
        return call.number

    def drop(self, number: int) -> None:
        """Do not wait for a call any more."""
        with self._lock:
            self._calls.pop(number, None)

    def answered(self, number: int, rank: int, answer: Answer) -> None:
        """Take an answer; those to calls that are over are ignored."""
        with self._lock:
            call = self._calls.get(number)
            if call is None or rank not in call.unanswered:
                return
            call.unanswered.discard(rank)
            if not call.unanswered:
                del self._calls[number]
            deliver = call.take(rank, answer)
        if deliver is not None:
            deliver()

    def ranks_of(self, number: int, is_there: Callable[[Address], bool]) -> list[int]:
        """Return the ranks of a call that have not answered and are at some address."""
        with self._lock:
            call = self._calls.get(number)
            return [rank for rank in call.unanswered if is_there(call.places[rank])] if call is not None else []

    def undelivered(self, number: int, node: str, processes: Sequence[str], failed: Failed) -> None:
        """Note that processes will not answer a call."""
        with self._lock:
            call = self._calls.get(number)
            ranks = call.ranks_at(node, processes) if call is not None else []
        self._lost(call, ranks, failed)

    def node_lost(self, node: str, failed: Failed) -> None:
        """Note that nobody on a node will answer."""
        with self._lock:
            lost = [(call, ranks) for call in self._calls.values() if (ranks := call.ranks_at(node))]
        for call, ranks in lost:
            self._lost(call, ranks, failed)

    def _lost(self, call: Call | None, ranks: Sequence[int], failed: Failed) -> None:
        if call is None:
            return
        has_ended = call.is_lasting and failed.kind == "stopped"
        answer = Answer(ANSWER, Plain(None)) if has_ended else Answer(FAILED, Plain(failed))
        for rank in ranks:
            self.answered(call.number, rank, answer)
        if ranks and not call.is_lasting and call.unanswered:
            timer = threading.Timer(AFTER_DEATH_S, self._give_up, [call.number])
            timer.daemon = True
            timer.start()

    def _give_up(self, number: int) -> None:
        with self._lock:
            call = self._calls.get(number)
            deliver = call.give_up() if call is not None else None
            if deliver is not None:
                del self._calls[number]
        if deliver is not None:
            deliver()

    def states(self) -> list[CallState]:
        """Return those that people wait for."""
        with self._lock:
            return [call.state() for call in self._calls.values() if not call.is_lasting]
