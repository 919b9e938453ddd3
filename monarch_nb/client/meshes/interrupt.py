"""Interrupting all that meshes do, whoever submitted it.

What waits is dropped on every node before what runs is interrupted on any: no rank becomes free before, so nothing of
what waits ever begins. Actors are interrupted in whose name ever they execute: the run of calls of a cell that waits
for nothing ends with the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.runs.interrupting import PRESS, STOP_WAIT_S, InterruptReport, place_of, sorted_out
from monarch_nb.client.runs.run import Run
from monarch_nb.config import MAIN_MESH, MONARCH_MESH, cadence, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

LOOK_S = cadence(0.1)
"""So often it is asked whether endpoints have ended: nothing tells that to who did not call them."""
ASK_S = patience(2.0)


class InterruptedActors:
    """Actors that were interrupted. Coroutines run on the background loop.

    Args:
        core: of their mesh.
        suffix: of what is called by a name.
        before: what each rank had, and did, by then.
        restarted: ranks that were killed and started again instead.

    Attributes:
        messages: so many waited, and were dropped.
    """

    def __init__(
        self,
        core: MeshCore,
        suffix: str,
        before: Mapping[int, wire.ControlReply],
        restarted: Sequence[int],
    ) -> None:
        self._core, self._suffix, self._before, self._restarted = core, suffix, before, restarted
        self._began_s = asyncio.get_running_loop().time()
        self.messages = sum(actor.waiting for reply in before.values() for actor in reply.actors)

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
        for rank, where in _saving(self._before).items():
            endpoints.setdefault(f"{where.line}{self._suffix}", set()).add(rank)
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
            silent = [rank for rank in left if rank not in replies and rank not in self._core.dead]
            saving = {rank: where for rank, where in _saving(replies).items() if where.running_s >= age_s}
            left = {**saving, **{rank: each.where for rank, each in _executing(replies) if each.running_s >= age_s}}
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
    silent = {rank for rank in ranks if rank not in replies}
    busy = {rank for rank, _ in _executing(replies)} | _saving(replies).keys()
    doomed = sorted(core.doomed_actors.now & (busy | silent)) if kill_stuck else []
    if doomed:
        await core.restart(doomed)
    return InterruptedActors(core, suffix, replies, doomed)


async def executing(core: MeshCore, ranks: Iterable[int]) -> list[str]:
    """Return what actors of ranks execute, and where, for people: "trainers.step at train.py:41"."""
    replies = await core.control(list(ranks), timeout_s=ASK_S, actors=True)
    places = (f"{actor.name}.{actor.running} {place_of(actor.where)}" for _, actor in _executing(replies))
    return list(dict.fromkeys(places))


def _executing(told: Mapping[int, wire.ControlReply]) -> Iterator[tuple[int, run_pb2.ActorStatus]]:
    return ((rank, actor) for rank, reply in told.items() for actor in reply.actors if actor.running)


def _saving(told: Mapping[int, wire.ControlReply]) -> dict[int, run_pb2.Where]:
    """Return the ranks that save between two runs, and where that is."""
    return {rank: reply.where for rank, reply in told.items() if reply.where.line}


@dataclass(frozen=True)
class Part:
    """What is interrupted of a mesh.

    Attributes:
        runs: that go on on these ranks of the mesh or wait for them.
        mesh: its name.
        suffix: of what is called by a name; empty when no other mesh is meant.
        is_ours: whether we hold it; else only our own runs are interrupted, and no actors.
    """

    core: MeshCore
    ranks: Sequence[int]
    runs: Sequence[Run]
    mesh: str = MAIN_MESH
    suffix: str = ""
    is_ours: bool = True

    @property
    def is_monarch(self) -> bool:
        """Whether its actors are Monarch's own, which nobody can interrupt: they are named, and never killed."""
        return self.mesh == MONARCH_MESH


def interrupt_parts(parts: Iterable[Part], *, kill_stuck: bool) -> InterruptReport:
    """Drop the runs that wait, and interrupt those that have begun and all that actors execute.

    Args:
        kill_stuck: kill and restart the ranks that did not stop at the interrupt before this one.
    """
    parts = list(parts)
    stopped = call(_stopped_parts(parts, kill_stuck))
    reports: dict[str, InterruptReport] = {}
    for part, one in zip(parts, stopped, strict=True):
        for run in one.waiting:
            run.wait_freed(STOP_WAIT_S)
        part.core.unstopped = [run for run in (*one.reports, *one.waiting) if run.is_unstopped]
        reports |= {run.name + part.suffix: report for run, report in one.reports.items()}  # each knows its number now
        reports |= one.of_actors
    dropped = [run.name + part.suffix for part, one in zip(parts, stopped, strict=True) for run in one.waiting]
    others = [name for one in stopped for name in one.others]
    goes_on = [name for one in stopped for name in one.goes_on]
    report = InterruptReport.of(reports, dropped, sum(one.messages for one in stopped), others, goes_on)
    return replace(report, again=PRESS) if kill_stuck else report


@dataclass
class _Stopped:
    """What became of a part.

    Attributes:
        waiting: the runs that were dropped.
        others: runs of others, which are not interrupted.
        goes_on: what actors of Monarch's execute.
        messages: so many were dropped that waited for actors.
        reports, of_actors: what became of runs, and of what actors executed.
    """

    waiting: list[Run]
    others: list[str]
    goes_on: list[str] = field(default_factory=list)
    messages: int = 0
    reports: dict[Run, InterruptReport] = field(default_factory=dict)
    of_actors: dict[str, InterruptReport] = field(default_factory=dict)


async def _stopped_parts(parts: Sequence[Part], kill_stuck: bool) -> list[_Stopped]:
    """Interrupt all at once: each may take a few seconds. One that fails holds up no other."""
    ended = await asyncio.gather(*(_stop(part, kill_stuck) for part in parts), return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if isinstance(one, _Stopped)]


async def _stop(part: Part, kill_stuck: bool) -> _Stopped:
    known = [run for run in part.runs if not (part.is_monarch and run.is_calls)]
    runs = known if part.is_ours else [run for run in known if not run.owner]
    begun = await _drop_waiting(part.core, runs) if runs else set()
    stopped = _Stopped(
        [run for run in runs if run.id not in begun], [run.name + part.suffix for run in known if run not in runs]
    )
    for run in stopped.waiting:
        run.cancel()  # for nodes that do not answer: when they are there again
    actors = None
    if part.is_monarch:
        stopped.goes_on = await executing(part.core, part.ranks)
    elif part.is_ours:
        actors = await interrupt_actors(part.core, part.ranks, part.suffix, kill_stuck=kill_stuck)
        stopped.messages = actors.messages
    going_on = [run for run in runs if run.id in begun]
    # One after the other: two runs may doom the same rank.
    killed = {run: await run.stop_ranks(kill_stuck=True) for run in going_on if kill_stuck and run.may_kill}
    asked = [run for run in going_on if run not in killed]
    told = killed | dict(zip(asked, await asyncio.gather(*(run.stop_ranks() for run in asked)), strict=True))
    stopped.reports = {run: told[run] for run in going_on}
    if actors is not None:
        stopped.of_actors = await actors.reports(run.id for run in runs)
    return stopped


async def _drop_waiting(core: MeshCore, runs: Sequence[Run]) -> set[str]:
    """Drop runs on every node where they have not begun; return those that have begun on some rank.

    A run that is begun on one node and waits on another counts as begun, and so does one of which no node that answers
    has a part: interrupting it says why it can not be reached.
    """
    request = pb.DropRequest(mesh_id=core.mesh_id, run_ids=[run.id for run in runs])
    replies = await answers({node: node.unary("Drop", request, patience(2.0)) for node in core.connections.values()})
    begun: set[str] = set()
    for reply in replies.values():
        if isinstance(reply, pb.DropReply):
            begun.update(reply.begun)
        elif not isinstance(reply, NodeUnreachable):
            raise reply
    there = {node for node, connection in core.connections.items() if isinstance(replies[connection], pb.DropReply)}
    return begun | {run.id for run in runs if there.isdisjoint(core.by_node(run.ranks))}
