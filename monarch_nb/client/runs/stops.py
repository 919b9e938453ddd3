"""Which ranks of a run have stopped at breakpoints: learnt from the marks in their output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from monarch_nb.config import OnBreakpoint
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2


class RunStops:
    """What has stopped, by rank and number of the stop; who waits for the run hears of each.

    Attributes:
        news: set when something has stopped since `take_news`, and when the run is over.
        count: how often something has stopped so far.
    """

    def __init__(self) -> None:
        self.news = Flag()
        self.count = 0
        self._open: set[tuple[int, int]] = set()
        self._is_over = False

    def note(self, rank: int, stop: int, *, on: bool) -> None:
        """A thread of a rank has stopped, or goes on."""
        if on:
            self._open.add((rank, stop))
            self.count += 1
            self.news.set()
        else:
            self._open.discard((rank, stop))

    def forget(self, ranks: Collection[int]) -> None:
        """Ranks have finished."""
        if self._open:
            self._open = {each for each in self._open if each[0] not in ranks}

    def over(self) -> None:
        """The run is over."""
        self._open.clear()
        self._is_over = True
        self.news.set()

    def take_news(self) -> None:
        """Wait for what comes from now on."""
        self.news.clear()
        if self._is_over:
            self.news.set()

    def remind(self) -> None:
        """Let who waits hear again of what has stopped, if anything has: it could not be answered."""
        if self._open:
            self.news.set()

    @property
    def text(self) -> str:
        """What people are told; empty when nothing has stopped."""
        ranks = {rank for rank, _ in self._open}
        return f"{name_ranks(ranks)} stopped at a breakpoint: %mesh debug answers" if ranks else ""


_POLICIES: dict[OnBreakpoint, run_pb2.OnBreakpoint.ValueType] = {
    "stop": run_pb2.ON_BREAKPOINT_UNSPECIFIED,
    "go-on": run_pb2.ON_BREAKPOINT_GO_ON,
    "error": run_pb2.ON_BREAKPOINT_ERROR,
}
_answering: list[Callable[[], bool]] = []
_chosen: list[OnBreakpoint] = []


def answer_where(can_answer: Callable[[], bool]) -> Callable[[], None]:
    """Let `can_answer` say whether somebody can answer breakpoints in this process; returns what ends that."""
    _answering.append(can_answer)
    return lambda: _answering.remove(can_answer)


def can_answer() -> bool:
    """Return whether somebody can answer breakpoints here: at a terminal, or in a notebook that takes input."""
    return _answering[-1]() if _answering else sys.stdin is not None and sys.stdin.isatty()


def choose(on_breakpoint: OnBreakpoint) -> None:
    """Say what breakpoints do from now on in all that this process runs or calls, where nothing else is said."""
    _chosen[:] = [on_breakpoint]


def choice(said: OnBreakpoint | None) -> OnBreakpoint:
    """Return what breakpoints do where `said` is said; else what was chosen, else they stop where somebody can
    answer."""
    return said or (_chosen[0] if _chosen else "stop" if can_answer() else "go-on")


def policy(said: OnBreakpoint | None) -> run_pb2.OnBreakpoint.ValueType:
    """Return what ranks are told for a `choice`."""
    return _POLICIES[choice(said)]
