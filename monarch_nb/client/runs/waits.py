"""Looks where the ranks of a run are while it lasts, and says who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from monarch_nb.client.connections import events
from monarch_nb.client.connections.events import Result
from monarch_nb.client.pools.infos import waits_in
from monarch_nb.client.runs.mismatches import are_unlike, explain_mismatch
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2

APART_AFTER_S = cadence(6.0)
"""So long ranks wait in the same places, while others are elsewhere, before it is said that they do."""
FREES = "Press ■ (or %mesh interrupt) to free {them}; variables stay."
ENDS_SCRIPT = "Press ■ (or %mesh interrupt) to end the script."
CONTINUES = "Type continue at the prompt, or at that of %mesh debug, and {ranks} {go} on."
"""What ends a wait for ranks that stand at breakpoints."""
ENDS = "This ends by itself in some seconds; variables stay."
NOT_ON_RUN = "the run is not on"
"""What is said of ranks of the mesh that a cell leaves out."""
_ON_ALL = "run it without -t, or use a group of these ranks"
_MAX_PLACES = 4
NOBODY: Mapping[int, str] = {}


@dataclass
class Standstill:
    """Looks at where a run's ranks wait, again and again: what comes and goes while they work is no hang.

    Attributes:
        looks: how many in a row have found the same.
    """

    looks: int = 0
    _places: Mapping[int, object] = field(default_factory=dict)
    _since_s: float = 0.0

    def lasts_s(self, waiting: Mapping[int, object], now_s: float) -> float:
        """Return how long the ranks that wait now have waited in these places.

        Args:
            waiting: ranks and what each waits in.
            now_s: of any clock that only goes on.
        """
        if waiting != self._places:
            self._places, self._since_s, self.looks = waiting, now_s, 0
        self.looks += 1
        return now_s - self._since_s


def waiting_in(where: Mapping[int, run_pb2.Where]) -> dict[int, str]:
    """Return the ranks that wait, and what each waits in."""
    return {rank: place for rank, at in where.items() if (place := waits_in(at))}


def progress_of(where: Mapping[int, run_pb2.Where]) -> dict[int, object]:
    """Return what changes when ranks go on, though they may wait at the same line at each look: they have called more
    collectives by then."""
    return {rank: (at.state, at.collective, at.line, dict(at.calls)) for rank, at in where.items()}


def are_apart(waiting: Mapping[int, str], ranks: int) -> bool:
    """Return whether some of so many ranks wait and others are elsewhere, be it in another collective."""
    return bool(waiting) and (len(waiting) < ranks or len(set(waiting.values())) > 1)


def explain_waits(
    results: Mapping[int, Result],
    where: Mapping[int, run_pb2.Where],
    left_out: Mapping[int, str] = NOBODY,
    *,
    stopped: Collection[int] = (),
    what_to_do: str = FREES,
) -> str:
    """Return the sentence and what to do, or an empty text when no rank waits in a collective.

    Args:
        results: of the ranks that have ended the run. where: the others are.
        left_out: ranks that it is not on, and why: NOT_ON_RUN.
        stopped: ranks that stand at breakpoints.
        what_to_do: FREES, ENDS_SCRIPT or ENDS.

    Example: `Stuck: ranks 0,2-3 wait in all_reduce (hang.py:5) for rank 1, which is at hang.py:6. Press ■ …`
    """
    sentence = _sentence(results, where, left_out, stopped, "waits", "wait", "is", "are")
    waiting = waiting_in(where)
    what_to_do = what_to_do.format(them="it" if len(waiting) == 1 else "them")
    if awaited := (where.keys() & stopped) - waiting.keys():
        go_on = CONTINUES.format(ranks=name_ranks(awaited), go="goes" if len(awaited) == 1 else "go")
        what_to_do = f"{go_on} {what_to_do}"
    way = f"; {_ON_ALL}" if NOT_ON_RUN in left_out.values() else ""
    return sentence and f"Stuck: {sentence}{way}. {what_to_do}"


def explain_past_waits(
    results: Mapping[int, Result],
    where: Mapping[int, run_pb2.Where],
    left_out: Mapping[int, str] = NOBODY,
    *,
    stopped: Collection[int] = (),
) -> str:
    """Return the sentence for those who read it when it is over."""
    return _sentence(results, where, left_out, stopped, "waited", "waited", "was", "were")


def _sentence(
    results: Mapping[int, Result],
    where: Mapping[int, run_pb2.Where],
    left_out: Mapping[int, str],
    stopped: Collection[int],
    *verbs: str,
) -> str:
    gone = {rank: _what_happened(result) for rank, result in sorted(results.items())} | dict(left_out)
    return wait_sentence(where, gone, *verbs, stopped=stopped)


def wait_sentence(
    where: Mapping[int, run_pb2.Where],
    gone: Mapping[int, str],
    waits: str = "waits",
    wait: str = "wait",
    is_at: str = "is",
    are_at: str = "are",
    *,
    stopped: Collection[int] = (),
) -> str:
    """Return the sentence itself, with what does not match; empty when no rank waits.

    Args:
        where: ranks are that may wait.
        gone: ranks that will not come, and what each did, after "which": "raised KeyError".
        waits, wait, is_at, are_at: the verbs, of one and of several.
        stopped: ranks that stand at breakpoints.
    """
    waiting = waiting_in(where)
    elsewhere = {rank: at.line for rank, at in sorted(where.items()) if rank not in waiting and at.line}
    places = _grouped({rank: f"a breakpoint ({at})" if rank in stopped else at for rank, at in elsewhere.items()})
    if len(places) > _MAX_PLACES:
        places = _grouped({rank: "a breakpoint" if rank in stopped else "other lines" for rank in elsewhere})
    awaited = [f"{name_ranks(ranks)}, which {what}" for what, ranks in _grouped(gone).items()]
    for place, ranks in places.items():
        awaited.append(f"{name_ranks(ranks)}, which {is_at if len(ranks) == 1 else are_at} at {place}")
    waiters = ", ".join(
        f"{name_ranks(ranks)} {waits if len(ranks) == 1 else wait} in {place}"
        for place, ranks in sorted(_grouped(waiting).items())
    )
    if not waiters:
        return ""
    sentence = f"{waiters} for {', and '.join(awaited)}" if awaited else waiters
    return "; ".join(filter(None, (sentence, explain_mismatch(where))))


def _grouped(ranks: Mapping[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, what in ranks.items():
        groups.setdefault(what, []).append(rank)
    return groups


def _what_happened(result: Result) -> str:
    if result.failure is None:
        return "finished the cell"
    if result.outcome == "error":
        return f"raised {result.failure.name}"
    return {"interrupted": "ended by an interrupt", "died": "died", "cancelled": "never ran it"}[result.outcome]


WAITS_INTERVAL_S = cadence(3.0)
CONFIRM_AFTER_S = cadence(1.0)
"""When the first look follows, and the one that confirms what will not end by itself."""
_LAST_LOOK_S = cadence(0.5)
"""So long an interrupt waits at most to learn what it is for."""
_MAX_INTERVAL_S = cadence(24.0)
"""Ranks that go on are asked less and less often."""


class WaitsWatch:
    """Says who waits while nothing goes on: no rank comes to another place, calls another collective or prints.

    Two looks are enough once a rank has ended the run, or calls do not match. Else ranks must have waited for a few
    seconds while others are elsewhere or were left out.

    Args:
        results: by rank, of those that have ended the run; looked at, not copied.
        look: returns where the other ranks are; None when it is not worth while.
        left_out: returns the mesh's ranks on which it is not, and why: they come to no collective.
        emit: is told, with the key "waits".
        is_in_vain: returns whether the ranks are freed from one that has failed, once that has stayed so for some
            seconds. free: frees them.
        frees: returns what frees ranks that wait for others.
        stopped: returns the ranks that stand at breakpoints.

    Attributes:
        told: who waits for whom, as was said last; empty while nobody seems to.
        past: who waited for whom at the last look, for those who read it when it is over.
        printed: a rank has printed since the last look.
    """

    def __init__(
        self,
        results: Mapping[int, events.Result],
        look: Callable[[], Awaitable[Mapping[int, run_pb2.Where] | None]],
        left_out: Callable[[], Mapping[int, str]],
        emit: Callable[[events.Notice], None],
        is_in_vain: Callable[[], Awaitable[bool]],
        free: Callable[[], None],
        frees: Callable[[], str] = lambda: FREES,
        stopped: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.past, self.printed = "", False
        self._results, self._look, self._left_out = results, look, left_out
        self._emit, self._is_in_vain, self._free, self._frees = emit, is_in_vain, free, frees
        self._stopped = stopped
        self._standstill, self.told, self._has_looked, self._lasts_s = Standstill(), "", False, 0.0

    async def go_on(self) -> None:
        """Look again and again until this is cancelled."""
        interval_s = min(CONFIRM_AFTER_S, WAITS_INTERVAL_S)
        while True:
            await asyncio.sleep(interval_s)
            where = await self._look()
            if where is None:
                interval_s = WAITS_INTERVAL_S
                continue
            self._has_looked = True
            is_in_vain = bool(waiting_in(where)) and await self._is_in_vain()
            is_calm = self._is_calm(where, asyncio.get_running_loop().time(), is_in_vain)
            if is_calm:
                interval_s = min(max(2 * interval_s, WAITS_INTERVAL_S), _MAX_INTERVAL_S)
            else:
                is_sure = self._ends_not_by_itself(where) and not self.told
                interval_s = min(CONFIRM_AFTER_S, WAITS_INTERVAL_S) if is_sure else WAITS_INTERVAL_S
            if is_in_vain and self.told and self._lasts_s >= APART_AFTER_S:
                self._free()

    async def look_before_interrupt(self) -> None:
        """Learn what an interrupt is for that comes before it was said. A run that has just begun is not asked."""
        if self.past or not self._has_looked:
            return
        with contextlib.suppress(TimeoutError, MonarchNbError):
            async with asyncio.timeout(_LAST_LOOK_S):
                where = await self._look()
            if where and self._ends_not_by_itself(where):
                self.past = explain_past_waits(self._results, where, self._left_out(), stopped=self._stopped())

    def _ends_not_by_itself(self, where: Mapping[int, run_pb2.Where]) -> bool:
        return bool(self._results) or are_unlike(where)

    def _is_calm(self, where: Mapping[int, run_pb2.Where], now_s: float, is_in_vain: bool = False) -> bool:
        """Say who waits for whom; return whether nobody seems to."""
        waiting, left_out, is_unlike = waiting_in(where), self._left_out(), are_unlike(where)
        is_sure = is_unlike or bool(self._results)
        may_hang = bool(is_sure or left_out or are_apart(waiting, len(where)))
        if not may_hang or (self.printed and not is_unlike):
            waiting = {}
        self.printed = False
        # Who raised is told though others still compute.
        still = {rank: at for rank, at in where.items() if rank in waiting or (waiting and not self._results)}
        self._lasts_s = self._standstill.lasts_s(progress_of(still), now_s)
        is_hang = bool(waiting) and (self._lasts_s >= APART_AFTER_S or (is_sure and self._standstill.looks > 1))
        self.past, text = "", ""
        if is_hang:
            stopped, what_to_do = self._stopped(), ENDS if is_in_vain else self._frees()
            self.past = explain_past_waits(self._results, where, left_out, stopped=stopped)
            text = explain_waits(self._results, where, left_out, stopped=stopped, what_to_do=what_to_do)
        if text != self.told:
            self.told = text
            self._emit(events.Notice(text, key="waits"))
        return not waiting
