"""Looks where the ranks of a run are while it lasts, and says who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from monarch_nb.client.connections import events
from monarch_nb.client.runs.watching.mismatches import are_unlike
from monarch_nb.client.runs.watching.waits import (
    APART_AFTER_S,
    Standstill,
    are_apart,
    explain_past_waits,
    explain_waits,
    waiting_in,
)
from monarch_nb.proto import run_pb2

WAITS_INTERVAL_S = 3.0
_MAX_INTERVAL_S = 24.0
"""Ranks that go on are asked less and less often."""


class WaitsWatch:
    """Who waits is named at every look once a rank has ended the run. Before that only a standstill counts: for a few
    seconds ranks wait in the same places, others are elsewhere or were left out, and nobody prints.

    Args:
        results: by rank, of those that have ended the run; looked at, not copied.
        look: returns where the other ranks are; None when it is not worth while.
        left_out: returns the mesh's ranks on which it is not, and why: they come to no collective.
        emit: is told, with the key "waits".

    Attributes:
        past: who waited for whom at the last look, for those who read it when it is over.
        printed: a rank has printed since the last look.
    """

    def __init__(
        self,
        results: Mapping[int, events.Result],
        look: Callable[[], Awaitable[Mapping[int, run_pb2.Where] | None]],
        left_out: Callable[[], Mapping[int, str]],
        emit: Callable[[events.Event], None],
    ) -> None:
        self.past, self.printed = "", False
        self._results, self._look, self._left_out, self._emit = results, look, left_out, emit
        self._standstill, self._told = Standstill(), ""

    async def go_on(self) -> None:
        """Look again and again until this is cancelled."""
        interval_s = WAITS_INTERVAL_S
        while True:
            await asyncio.sleep(interval_s)
            where = await self._look()
            if where is None:
                continue
            is_calm = self._is_calm(where, asyncio.get_running_loop().time())
            interval_s = min(2 * interval_s, _MAX_INTERVAL_S) if is_calm else WAITS_INTERVAL_S

    def _is_calm(self, where: Mapping[int, run_pb2.Where], now_s: float) -> bool:
        """Say who waits for whom; return whether nobody seems to."""
        waiting, left_out = waiting_in(where), self._left_out()
        if self.printed or not (self._results or left_out or are_apart(waiting, len(where)) or are_unlike(where)):
            waiting = {}
        self.printed = False
        lasts_s = self._standstill.lasts_s(waiting, now_s)
        is_hang = bool(waiting) and (bool(self._results) or lasts_s >= APART_AFTER_S)
        self.past = explain_past_waits(self._results, where, left_out) if is_hang else ""
        text = explain_waits(self._results, where, left_out) if is_hang else ""
        if text != self._told:
            self._told = text
            self._emit(events.Notice(text, key="waits"))
        return not waiting
