"""Looks where the ranks of a run are while it lasts, and says who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from monarch_nb.client.connections import events
from monarch_nb.client.runs.watching.mismatches import are_unlike
from monarch_nb.client.runs.watching.waits import (
    APART_AFTER_S,
    Standstill,
    are_apart,
    explain_past_waits,
    explain_waits,
    progress_of,
    waiting_in,
)
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import run_pb2

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
    ) -> None:
        self.past, self.printed = "", False
        self._results, self._look, self._left_out, self._emit = results, look, left_out, emit
        self._standstill, self.told, self._has_looked = Standstill(), "", False

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
            is_calm = self._is_calm(where, asyncio.get_running_loop().time())
            if is_calm:
                interval_s = min(max(2 * interval_s, WAITS_INTERVAL_S), _MAX_INTERVAL_S)
            else:
                is_sure = self._ends_not_by_itself(where) and not self.told
                interval_s = min(CONFIRM_AFTER_S, WAITS_INTERVAL_S) if is_sure else WAITS_INTERVAL_S

    async def look_before_interrupt(self) -> None:
        """Learn what an interrupt is for that comes before it was said. A run that has just begun is not asked."""
        if self.past or not self._has_looked:
            return
        with contextlib.suppress(TimeoutError, MonarchNbError):
            async with asyncio.timeout(_LAST_LOOK_S):
                where = await self._look()
            if where and self._ends_not_by_itself(where):
                self.past = explain_past_waits(self._results, where, self._left_out())

    def _ends_not_by_itself(self, where: Mapping[int, run_pb2.Where]) -> bool:
        return bool(self._results) or are_unlike(where)

    def _is_calm(self, where: Mapping[int, run_pb2.Where], now_s: float) -> bool:
        """Say who waits for whom; return whether nobody seems to."""
        waiting, left_out, is_unlike = waiting_in(where), self._left_out(), are_unlike(where)
        is_sure = is_unlike or bool(self._results)
        may_hang = bool(is_sure or left_out or are_apart(waiting, len(where)))
        if not may_hang or (self.printed and not is_unlike):
            waiting = {}
        self.printed = False
        # Who raised is told though others still compute.
        still = {rank: at for rank, at in where.items() if rank in waiting or (waiting and not self._results)}
        lasts_s = self._standstill.lasts_s(progress_of(still), now_s)
        is_hang = bool(waiting) and (lasts_s >= APART_AFTER_S or (is_sure and self._standstill.looks > 1))
        self.past = explain_past_waits(self._results, where, left_out) if is_hang else ""
        text = explain_waits(self._results, where, left_out) if is_hang else ""
        if text != self.told:
            self.told = text
            self._emit(events.Notice(text, key="waits"))
        return not waiting
