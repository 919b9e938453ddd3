"""Interrupting what the actors of ranks execute, in whose name ever, and dropping what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.runs.interrupts.freeing import STOP_WAIT_S
from monarch_nb.client.runs.interrupts.interrupt_report import InterruptReport, place_of, sorted_out
from monarch_nb.config import cadence, patience
from monarch_nb.proto import run_pb2

LOOK_S = cadence(0.1)
"""So often it is asked whether endpoints have ended: nothing tells that to who did not call them."""
ASK_S = patience(2.0)


class InterruptedActors:
    """Actors that were interrupted. Coroutines run on the background loop.

    Args:
        core: of their mesh.
        suffix: of what is called by a name.
        before: what each rank had by then.
        restarted: ranks that were killed and started again instead.

    Attributes:
        messages: so many waited, and were dropped.
    """

    def __init__(
        self,
        core: MeshCore,
        suffix: str,
        before: Mapping[int, Sequence[run_pb2.ActorStatus]],
        restarted: Sequence[int],
    ) -> None:
        self._core, self._suffix, self._before, self._restarted = core, suffix, before, restarted
        self._began_s = asyncio.get_running_loop().time()
        self.messages = sum(actor.waiting for actors in before.values() for actor in actors)

    async def reports(self, run_ids: Iterable[str]) -> dict[str, InterruptReport]:
        """Wait a few seconds until what was interrupted has ended; return what became of each endpoint, by its name.

        Args:
            run_ids: of the runs that tell themselves what became of what is executed in their names.
        """
        told = set(run_ids)
        endpoints: dict[str, set[int]] = {}
        for rank, actor in _executing(self._before):
            if actor.where.run_id not in told:
                endpoints.setdefault(f"{actor.name}.{actor.running}{self._suffix}", set()).add(rank)
        left = await self._left({rank for ranks in endpoints.values() for rank in ranks})
        stuck, handling = sorted_out(left, {rank: where for rank, where in left.items() if where is not None})
        kills = self._core.doomed_actors.judge(InterruptReport(stuck=stuck, handling=handling)).kills
        reports = {
            title: InterruptReport(
                stopped=tuple(sorted(ranks - left.keys() - {*self._restarted})),
                stuck={rank: stuck[rank] for rank in sorted(ranks & stuck.keys())},
                handling={rank: handling[rank] for rank in sorted(ranks & handling.keys())},
                kills=kills,
            )
            for title, ranks in endpoints.items()
        }
        if self._restarted:
            reports["restarted"] = InterruptReport(restarted=tuple(self._restarted), had_actors=True)
        return reports

    async def _left(self, ranks: set[int]) -> dict[int, run_pb2.Where | None]:
        """Return the ranks that still execute what they did before, and where; None of one that does not answer."""
        loop = asyncio.get_running_loop()
        left: dict[int, run_pb2.Where | None] = dict.fromkeys(ranks - {*self._restarted})
        while left:
            replies = await self._core.control(sorted(left), timeout_s=patience(1.0), actors=True)
            age_s = loop.time() - self._began_s
            told = {rank: reply.actors for rank, reply in replies.items()}
            silent = [rank for rank in left if rank not in replies and rank not in self._core.dead]
            left = {rank: actor.where for rank, actor in _executing(told) if actor.running_s >= age_s}
            left |= dict.fromkeys(silent)
            if age_s > STOP_WAIT_S:
                break
            if left:
                await asyncio.sleep(LOOK_S)
        return left


async def interrupt_actors(core: MeshCore, ranks: Iterable[int], suffix: str, *, kill_stuck: bool) -> InterruptedActors:
    """Interrupt whatever actors of ranks execute, and drop what waits for them.

    Args:
        kill_stuck: kill and restart the ranks whose actors did not stop at the interrupt before this one.
    """
    replies = await core.control(list(ranks), timeout_s=ASK_S, interrupt_actors=True)
    before = {rank: reply.actors for rank, reply in replies.items()}
    silent = {rank for rank in ranks if rank not in replies}
    doomed = sorted(core.doomed_actors.now & ({rank for rank, _ in _executing(before)} | silent)) if kill_stuck else []
    if doomed:
        await core.restart(doomed)
    return InterruptedActors(core, suffix, before, doomed)


async def executing(core: MeshCore, ranks: Iterable[int]) -> list[str]:
    """Return what actors of ranks execute, and where, for people: "trainers.step at train.py:41"."""
    replies = await core.control(list(ranks), timeout_s=ASK_S, actors=True)
    told = {rank: reply.actors for rank, reply in replies.items()}
    places = (f"{actor.name}.{actor.running} {place_of(actor.where)}" for _, actor in _executing(told))
    return list(dict.fromkeys(places))


def _executing(
    told: Mapping[int, Iterable[run_pb2.ActorStatus]],
) -> Iterator[tuple[int, run_pb2.ActorStatus]]:
    return ((rank, actor) for rank, actors in told.items() for actor in actors if actor.running)
