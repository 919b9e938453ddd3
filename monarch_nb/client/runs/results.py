"""What came of the ranks of a run: how they ended, what they returned, and which have stopped at breakpoints."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from monarch_nb.branches.folding import ranks_of_equal
from monarch_nb.client.connections import events
from monarch_nb.config import OnBreakpoint
from monarch_nb.errors import PickleError
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.frames import unpack_pickle
from monarch_nb.ground.ranges import Ranges
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


class RunResults(Mapping[int, events.Result]):
    """Results by rank, in the order in which they came. Thousands of ranks may end alike, and nobody look at them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._made: dict[int, events.Result] = {}
        self._notable: dict[int, events.Result] = {}
        self._alike: list[_Alike] = []
        self._ranks_alike = Ranges()
        self._came: list[Ranges | tuple[int]] = []
        self._count = 0
        self._lost: dict[tuple[str, str], list[int]] = {}

    def add_alike(self, ranks: Ranges, equal: pb.EqualResults, *, may_print_later: bool) -> None:
        """Ranks have come to the end, and there is nothing else to say of them.

        Args:
            ranks: some of those that `equal` names, of which nothing has come before.
        """
        self._alike.append(_Alike(ranks, equal, may_print_later))
        self._ranks_alike |= ranks
        self._came.append(ranks)
        self._count += len(ranks)

    def left_of(self, ranks: Ranges) -> Ranges:
        """Return those of some ranks that have no result."""
        left = ranks - self._ranks_alike
        return Ranges.of(rank for rank in left if rank not in self._notable) if self._notable else left

    def lost(self, rank: int, node: str, what: str) -> str:
        """A rank says that something of it was lost; return what there is to say of all that have said so."""
        self._lost.setdefault((node, what), []).append(rank)
        return "; ".join(f"{name_ranks(ranks)} on {node}: {what}" for (node, what), ranks in self._lost.items())

    def ranks_ok(self) -> list[int]:
        """Return the ranks that have come to the end."""
        return [*self._ranks_alike, *(rank for rank, result in self._notable.items() if result.outcome == "ok")]

    @property
    def notable(self) -> list[events.Result]:
        """Those of ranks of which there is something to say."""
        return list(self._notable.values())

    def __getitem__(self, rank: int) -> events.Result:
        if rank not in self._made:
            alike = next((alike for alike in reversed(self._alike) if rank in alike.ranks), None)
            if alike is None:
                raise KeyError(rank)
            self._made[rank] = alike.of(rank)
        return self._made[rank]

    def __setitem__(self, rank: int, result: events.Result) -> None:
        if rank not in self:
            self._came.append((rank,))
            self._count += 1
        self._made[rank] = self._notable[rank] = result

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(list(self._came))  # more may come meanwhile, on the background loop

    def __len__(self) -> int:
        return self._count  # asked at every message of a run

    def __contains__(self, rank: object) -> bool:
        return rank in self._notable or rank in self._ranks_alike


class _Alike:
    """Ranks that have come to the end alike."""

    def __init__(self, ranks: Ranges, equal: pb.EqualResults, may_print_later: bool) -> None:
        self.ranks = ranks
        self._equal, self._may_print_later = equal, may_print_later
        self._durations_s: dict[int, float] = {}

    def of(self, rank: int) -> events.Result:
        """Return what listeners are told of one of them."""
        if not self._durations_s:
            self._durations_s = dict(zip(ranks_of_equal(self._equal), self._equal.durations_s, strict=True))
        return events.Result(rank, "ok", self._durations_s[rank], may_print_later=self._may_print_later)


class RunValues:
    """The last expression's value of each rank that has finished."""

    def __init__(self) -> None:
        self._packed: dict[int, run_pb2.RankResult] = {}
        self._values: dict[int, Any] = {}

    def add(self, packed: run_pb2.RankResult) -> None:
        """A rank has finished."""
        self._packed[packed.rank] = packed

    def to_fetch(self) -> list[run_pb2.RankResult]:
        """Return the results whose value is still a blob on its rank's node."""
        return [packed for packed in self._packed.values() if packed.WhichOneof("value") == "value_blob"]

    def all(self, ranks: Iterable[int]) -> list[Any]:
        """Return the values of `ranks`; None where there is none.

        Raises:
            PickleError: a value could not be pickled on its rank, or not unpickled here.
        """
        errors: dict[str, list[int]] = {}
        for rank, packed in list(self._packed.items()):  # more may come meanwhile, on the background loop
            if packed.WhichOneof("value") == "value_error":
                errors.setdefault(packed.value_error, []).append(rank)
        if errors:
            text = "; ".join(f"{name_ranks(ranks)}: {error}" for error, ranks in errors.items())
            raise PickleError(text, next(iter(errors)), [rank for ranks in errors.values() for rank in ranks])
        return [self.of(rank) for rank in ranks]

    def kept(self, ranks: Iterable[int]) -> list[Any]:
        """As `all`, with a PickleError in place of each value that could not be brought here."""
        return [self._value_or_error(rank) for rank in ranks]

    def _value_or_error(self, rank: int) -> Any:
        try:
            return self.of(rank)
        except PickleError as error:
            return error

    def of(self, rank: int) -> Any:
        """Return one rank's value.

        Raises:
            PickleError: as `all`.
        """
        packed = self._packed.get(rank)
        if packed is not None and packed.WhichOneof("value") == "value_error":
            raise PickleError(packed.value_error, packed.value_error, [rank])
        if rank not in self._values and packed is not None and packed.WhichOneof("value") == "value_inline":
            try:
                self._values[rank] = unpack_pickle(bytearray(packed.value_inline))
            except Exception as error:
                raise PickleError(
                    f"the value of rank {rank} can not be unpickled here: {type(error).__name__}: {error}; bring plain "
                    "data instead, such as a state_dict()",
                    ranks=[rank],
                ) from error
            packed.ClearField("value")
        return self._values.get(rank)


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
    def ranks(self) -> set[int]:
        """Those of which something has stopped."""
        return {rank for rank, _ in self._open}

    @property
    def text(self) -> str:
        """What people are told; empty when nothing has stopped."""
        ranks = self.ranks
        return f"{name_ranks(ranks)} stopped at a breakpoint: answer at the prompt, or by %mesh debug" if ranks else ""


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
