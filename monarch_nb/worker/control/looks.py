"""What a thread does, as one look at its stack tells, and how many looks make shares of the last seconds. Pure.

A look sees Python's frames and how much of a processor the thread used since the look before. So it can tell what
torch was called for, but not whether C code computes or waits for a GPU.
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from monarch_nb.worker.user_code import PACKAGE, is_standard

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
"""Of what `collectives.collective` names, these compute as well: they wait for peers only while the thread sleeps."""
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
