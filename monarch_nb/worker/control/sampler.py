"""What this rank does, looked at 20 times a second while somebody watches: what one look tells, shares of many.

A look sees Python's frames and how much of a processor the thread used since the look before. So it can tell what
torch was called for, but not whether C code computes or waits for a GPU. Without anybody who watches nothing looks.

Who looks must get the interpreter soon from a thread that executes Python (`switching_within`). Python's own 5 ms are
too long: code that runs for less than that between two calls of torch, which give the interpreter away, would never be
seen, and torch would be blamed.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from monarch_nb.config import cadence, gap
from monarch_nb.ground.printing import encodable
from monarch_nb.proto.run_pb2 import Looks
from monarch_nb.worker.control.interrupts import thread_state
from monarch_nb.worker.groups import calls
from monarch_nb.worker.user_code import PACKAGE, UserCode, is_standard

COLLECTIVE = "collective"
"""In a call of torch.distributed, or in one that waits for peers inside: see MAY_COMPUTE."""
LOADER = "loader"
"""In a data loader, whatever is called there."""
TORCH = "torch"
"""In torch: its own Python, or what that calls in C."""
PYTHON = "python"
"""In other code: the user's or a library's, and what its lines call in C themselves."""
WAITING = "waiting"
"""Without a processor, in none of these: it sleeps, reads, or waits for a lock."""
BREAKPOINT = "breakpoint"
"""A debugger has stopped it."""
IDLE = "idle"
"""Nothing runs."""

MAY_COMPUTE = ("backward", "DistributedDataParallel", "DistributedDataParallel.forward")
"""Of what `calls.collective` names, these compute as well: they wait for peers only while the thread sleeps."""
_DEBUGGER = os.path.join(PACKAGE, "worker", "debug", "")
_STANDARD, _LOADERS = "standard", "loaders"
_LOADER_PARTS = ("/torch/utils/data/", "-packages/torchdata/", "-packages/datasets/", "-packages/webdataset/")
_TORCH = f"{os.sep}torch{os.sep}"
_ENOUGH_OF_A_PROCESSOR = 0.5


class Look(NamedTuple):
    """What one look saw.

    Attributes:
        kind: one of the names above.
        what: which collective.
        line: the innermost line of the user's code: "train.py:41".
        in_run: a run executes, and no endpoint that is called again and again.
    """

    kind: str
    what: str = ""
    line: str = ""
    in_run: bool = False


def computes(processor: float | None, state: Callable[[], str]) -> bool:
    """Return whether a thread computes.

    Args:
        processor: which part of one it used since the last look; None when there was none.
        state: returns what the kernel says of it now: "R", "S", …. That takes long to read. A thread that gives the
            interpreter to the one that looks sleeps.
    """
    return processor is None or processor >= _ENOUGH_OF_A_PROCESSOR or state() != "S"


def kind_of(files: Sequence[str], collective: str, *, is_busy: bool, has_gpu: bool) -> tuple[str, str]:
    """Return what a thread does, and in which collective.

    Args:
        files: of the code of its frames, innermost first.
        collective: the name of the collective that these are in, if they are in one.
        is_busy: it computes.
        has_gpu: other threads compute for it: that it sleeps in backward says nothing then.

    Example:
        >>> kind_of(["/lib/torch/distributed/distributed_c10d.py"], "all_reduce", is_busy=False, has_gpu=False)
        ('collective', 'all_reduce')
    """
    places = [_place_of(file) for file in files]
    if _DEBUGGER in places:
        return BREAKPOINT, ""
    if collective and (collective not in MAY_COMPUTE or not (is_busy or has_gpu)):
        return COLLECTIVE, collective
    if _LOADERS in places:
        return LOADER, ""
    innermost = next((place for place in places if place is not _STANDARD), "")
    if innermost is _TORCH and (is_busy or has_gpu or collective):
        return TORCH, ""
    return (PYTHON if is_busy else WAITING), ""


@lru_cache(maxsize=4096)
def _place_of(file: str) -> str:
    """Return what a file is of, as far as that matters."""
    if file.startswith(_DEBUGGER):
        return _DEBUGGER
    if any(part in file for part in _LOADER_PARTS):
        return _LOADERS
    if is_standard(file):
        return _STANDARD
    return _TORCH if _TORCH in file else ""


@dataclass(frozen=True)
class Share:
    """Looks of one kind.

    Attributes:
        line: where most of them were.
    """

    kind: str
    what: str
    looks: int
    line: str


@dataclass
class Window:
    """The looks of the last seconds. Those at a run are forgotten when it has ended, so that the rank is seen to be
    idle at once: not between short runs that follow each other.

    Attributes:
        length_s: for how long a look is kept. ended_s: a run has ended when the rank has been idle for so long.
        steps_s: how long changes of the number of steps are kept.
    """

    length_s: float = 5.0
    ended_s: float = 0.4
    steps_s: float = 60.0
    _looks: deque[tuple[float, Look]] = field(default_factory=deque)
    _steps: deque[tuple[float, int]] = field(default_factory=deque)
    _ran_s: float = -math.inf

    def add(self, now_s: float, look: Look, steps: int) -> None:
        """Note what was seen."""
        self._looks.append((now_s, look))
        if look.kind != IDLE:
            self._ran_s = now_s if look.in_run else -math.inf
        has_ended = look.kind == IDLE and now_s - self._ran_s >= self.ended_s
        while self._looks[0][0] < now_s - self.length_s or (has_ended and self._looks[0][0] <= self._ran_s):
            self._looks.popleft()
        if not self._steps or steps != self._steps[-1][1]:
            self._steps.append((now_s, steps))
        while len(self._steps) > 2 and self._steps[0][0] < now_s - self.steps_s:
            self._steps.popleft()

    def clear(self) -> None:
        """Forget all: it was not looked for a while."""
        self._looks.clear()
        self._steps.clear()

    def forget_steps(self) -> None:
        """Forget the steps: another run begins."""
        self._steps.clear()

    def shares(self, since_s: float = 0) -> list[Share]:
        """Return what was seen since a time, the most frequent first."""
        lines: dict[tuple[str, str], Counter[str]] = {}
        for look in [look for at_s, look in self._looks if at_s >= since_s]:
            lines.setdefault((look.kind, look.what), Counter())[look.line] += 1
        shares = [Share(*key, count.total(), count.most_common(1)[0][0]) for key, count in lines.items()]
        return sorted(shares, key=lambda share: -share.looks)

    def steps_per_s(self, now_s: float) -> float | None:
        """Return how many steps a second there were; None when that is not known yet.

        The first number of steps was there before; it counts from the first change on, within the last seconds if
        these have two.
        """
        changes = list(self._steps)[1:]
        newest = [change for change in changes if change[0] >= now_s - self.length_s]
        if len(newest) >= 2:
            changes = newest
        if len(changes) < 2:
            return None
        (first_s, first), (last_s, last) = changes[0], changes[-1]
        rate = (last - first) / (last_s - first_s)
        since_s = now_s - last_s
        return rate if since_s * rate < 2 else (last - first) / (now_s - first_s)


_switching = threading.Lock()
_asked: list[float] = []
_before_s = _set_s = 0.0


@contextmanager
def switching_within(seconds: float) -> Iterator[None]:
    """Have threads switch at least so soon while the block is executed, on whichever thread. What the user's code sets
    meanwhile stays."""
    global _before_s
    with _switching:
        if not _asked:
            _before_s = sys.getswitchinterval()
        _asked.append(seconds)
        _set_interval()
    try:
        yield
    finally:
        with _switching:
            _asked.remove(seconds)
            if sys.getswitchinterval() == _set_s:
                _set_interval()


def _set_interval() -> None:
    global _set_s
    sys.setswitchinterval(min([_before_s, *_asked]))
    _set_s = sys.getswitchinterval()


INTERVAL_S = cadence(0.05)
LEASE_S = gap(5.0)
"""Whoever watches asks more often than that."""
_MOST_CODES = 4096
_SWITCH_S = 0.001


class Seen(NamedTuple):
    """A thread that executes user code.

    Attributes:
        thread: its ident. native_thread: what the kernel calls it.
        frames: those of user code, innermost first.
        run_id: of the run whose code it is; empty for an endpoint of an actor.
    """

    thread: int
    native_thread: int
    frames: list[FrameType]
    run_id: str = ""


class Looker:
    """Looks at what this rank executes.

    Args:
        seen: returns the thread to look at; None while nothing runs.
        user_code: knows the user's frames.
        steps: returns how many steps the rank's trainings have taken.
    """

    def __init__(self, seen: Callable[[], Seen | None], user_code: UserCode, steps: Callable[[], int]) -> None:
        self._seen, self._user_code, self._steps = seen, user_code, steps
        self._lock = threading.Lock()
        self._window = Window()
        self._until_s = 0.0
        self._thread: threading.Thread | None = None
        self._run_id = ""
        self._owned: dict[CodeType, bool] = {}
        self._processor: tuple[int, float, float] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def watched(self, last_s: float = 0) -> Looks:
        """Return what was seen in the last seconds; look on, or begin to. From any thread.

        Args:
            last_s: so many seconds; 0: as many as are remembered.
        """
        now_s = time.monotonic()
        with self._lock:
            self._until_s = now_s + LEASE_S
            if self._thread is None:
                self._window.clear()
                self._thread = threading.Thread(target=self._look_on, name="monarch_nb-looker", daemon=True)
                self._thread.start()
            shares, rate = self._window.shares(now_s - last_s if last_s else 0), self._window.steps_per_s(now_s)
        told = Looks(count=sum(share.looks for share in shares), steps_per_s=rate)
        for share in shares:
            told.shares.add(kind=share.kind, what=share.what, looks=share.looks, line=encodable(share.line))
        return told

    def _forget(self) -> None:
        """In a child that the user forks: it has no such thread, and nobody asks."""
        self._lock, self._thread = threading.Lock(), None

    def _look_on(self) -> None:
        """Look until nobody has asked for a while."""
        pause = allocate_lock()  # time.sleep may be another one by now
        pause.acquire()
        self._look()  # not kept: it does not know yet whether the thread uses a processor
        with switching_within(_SWITCH_S):
            while True:
                pause.acquire(timeout=INTERVAL_S)
                look = self._look()
                now_s = time.monotonic()
                with self._lock:
                    if now_s > self._until_s:
                        self._thread = None
                        self._owned.clear()
                        return
                    self._window.add(now_s, look, self._steps())

    def _look(self) -> Look:
        """Look once. Frames are let go at once: what they hold would live on with them."""
        seen = self._seen()
        if seen is None:
            return Look(IDLE)
        if seen.run_id and seen.run_id != self._run_id:
            self._run_id = seen.run_id
            with self._lock:
                self._window.forget_steps()
        frames = seen.frames
        collective = calls.glimpse(frames[0], _source_line) if frames else ""
        line = next((self._line(frame) for frame in frames if self._owns(frame)), "")
        files = [frame.f_code.co_filename for frame in frames]
        is_busy = computes(self._processor_since(seen.thread), lambda: thread_state(seen.native_thread)[0])
        return Look(*kind_of(files, collective, is_busy=is_busy, has_gpu=_has_gpu()), line, bool(seen.run_id))

    def _line(self, frame: FrameType) -> str:
        return self._user_code.line(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno)

    def _owns(self, frame: FrameType) -> bool:
        """Whether a frame is the user's: known of its code, because paths take long to compare."""
        owned = self._owned.get(frame.f_code)
        if owned is None:
            if len(self._owned) >= _MOST_CODES:
                self._owned.clear()
            owned = self._owned[frame.f_code] = self._user_code.owns(frame)
        return owned

    def _processor_since(self, thread: int) -> float | None:
        """Return which part of a processor a thread used since the last look at it."""
        now_s = time.monotonic()
        try:
            used_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
        except OSError:  # it has ended
            return None
        before, self._processor = self._processor, (thread, now_s, used_s)
        if before is None or before[0] != thread:
            return None
        return (used_s - before[2]) / max(now_s - before[1], 1e-6)


def _source_line(code: CodeType, number: int) -> str:
    return linecache.getline(code.co_filename, number)


def _has_gpu() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized()
