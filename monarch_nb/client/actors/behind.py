"""What a call that waits for long waits behind: asked of its ranks, and said where the caller sees it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakSet

from monarch_nb.actor.engine.outside import CallState
from monarch_nb.actor.hosts import sets_up
from monarch_nb.client.connections.events import Notice
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import duration

_log = logging.getLogger(__name__)

AFTER_S = cadence(3.0)
"""A call that waits for so long says why."""
LONGEST_S = cadence(24.0)
MAX_LINES = 3
NOTICE = "behind"
_IDLE = "is idle"


class Behind:
    """Looks after the calls that wait for long. On the background loop.

    Args:
        mesh_of: returns a mesh by its id.
    """

    def __init__(self, mesh_of: Callable[[str], Mesh | None]) -> None:
        self._mesh_of = mesh_of
        self._asking: asyncio.Task[None] | None = None
        self._told: dict[CallsRun, bool] = {}  # and whether it waits behind what others have called
        self._over: WeakSet[CallsRun] = WeakSet()
        self._pause_s, self._next_s = AFTER_S, 0.0

    def look(self, calls: Sequence[CallState], runs: Sequence[CallsRun]) -> None:
        """Say of which calls in the name of some runs it is time to say what they wait for; take back what is not true
        any more. What was said of others, as of those that are being interrupted, is left to `end`."""
        now_s = time.monotonic()
        ids = {run.id for run in runs}
        late = [call for call in calls if now_s - call.started_s >= AFTER_S and ids & _ids(call)]
        if not late:
            self._pause_s, self._next_s = AFTER_S, 0.0
            for run in [run for run in self._told if run in runs]:
                self.take_back(run)
        elif now_s >= self._next_s and (self._asking is None or self._asking.done()):
            self._next_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_S)
            self._asking = asyncio.get_running_loop().create_task(self._ask(late, runs))

    def take_back(self, run: CallsRun) -> None:
        """What a run waited for is not true any more."""
        if self._told.pop(run, None) is not None:
            run.emit(Notice("", key=NOTICE))

    async def end(self, runs: Iterable[CallsRun], *, is_interrupted: bool) -> None:
        """Nobody waits for runs any more. What was said of them is taken back; only what somebody did not want to wait
        for any longer stays."""
        for run in runs:
            self._over.add(run)
            if is_interrupted and self._told.get(run):
                del self._told[run]
            self.take_back(run)

    async def _ask(self, late: Sequence[CallState], runs: Sequence[CallsRun]) -> None:
        for run in runs:
            of_run = [call for call in late if run.id in _ids(call)]
            if not of_run or run in self._over:
                continue
            try:
                infos = await self._infos(run.mesh.id, of_run)
            except MonarchNbError as error:
                _log.debug("%s", error)
                continue
            lines = [line for call in of_run[:MAX_LINES] if (line := behind(call, run.mesh.id, infos))]
            if more := len(of_run) - MAX_LINES:
                lines += [f"{counted(more, 'more call')} wait"] if more > 0 else []
            if run not in self._over:  # by now
                run.emit(Notice("\n".join(lines), key=NOTICE))
                names = {call.title.rpartition(".")[0] for call in of_run}
                self._told[run] = any(one.waiting and one.name in names for on in infos.values() for one in on)

    async def _infos(self, mesh_id: str, calls: Iterable[CallState]) -> Mapping[int, list[ActorInfo]]:
        ranks = {rank for call in calls for rank in _ranks_of(call, mesh_id).values()}
        mesh = self._mesh_of(mesh_id)
        if mesh is None:
            return {}
        replies = await mesh.core.control(sorted(ranks), timeout_s=patience(1.0), actors=True)
        return {rank: [ActorInfo.of(mesh.name, rank, one) for one in reply.actors] for rank, reply in replies.items()}


def behind(call: CallState, mesh_id: str, infos: Mapping[int, Sequence[ActorInfo]]) -> str:
    """Return what a call waits for on the ranks of a mesh, in one line; empty when nothing is known of it.

    Args:
        infos: the actors of each rank of the mesh that answered.

    Example:
        trainers.step: rank 3 runs 'load' for 12 s, 4 messages wait there
    """
    name, _, endpoint = call.title.rpartition(".")
    groups: dict[str, list[ActorInfo]] = {}
    silent = []
    for rank in _ranks_of(call, mesh_id).values():
        if rank not in infos:
            silent.append(rank)
        named = [info for info in infos.get(rank, ()) if info.name == name]
        ending = next((info for info in named if info.is_ending), None)
        first = next((info for info in infos.get(rank, ()) if info.running and sets_up(info.class_name)), None)
        for info in (info for info in named if not info.is_ending):
            does = _does(info, endpoint)
            if first is not None and first is not info and does == _IDLE:
                does = f"is not made yet, while the bootstrap runs{_at(first)}"
                info = replace(info, running=first.running, running_s=first.running_s)
            elif ending is not None and does == _IDLE:
                does = f"is not made yet, while the one before ends{_at(ending)}"
            groups.setdefault(does, []).append(info)
    parts = [_part(does, alike) for does, alike in groups.items()]
    parts += [f"{name_ranks(silent)} {'does' if len(silent) == 1 else 'do'} not answer"] if silent else []
    return f"{call.title}: {'; '.join(parts)}" if parts else ""


def _does(info: ActorInfo, endpoint: str) -> str:
    if info.failure:
        return "has failed"
    if not info.running:
        return _IDLE
    is_it = info.running == endpoint and not info.waiting
    return f"runs it{_at(info)}" if is_it else f"runs {info.running!r}{_at(info)}"


def _at(info: ActorInfo) -> str:
    return f" at {info.where}" if info.where else ""


def _part(does: str, infos: Sequence[ActorInfo]) -> str:
    if len(infos) > 1:
        does = re.sub(r"^(runs|has|is)\b", lambda verb: _PLURAL[verb[1]], does)
    text = f"{name_ranks(info.rank for info in infos)} {does}"
    if any(info.running for info in infos):
        text += f" for {duration(max(info.running_s for info in infos))}"
    if waiting := max(info.waiting for info in infos):
        up_to = "up to " if waiting != min(info.waiting for info in infos) else ""
        where = "there" if len(infos) == 1 else "on each"
        text += f", {up_to}{counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'} {where}"
    return text


_PLURAL = {"runs": "run", "has": "have", "is": "are"}


def _ids(call: CallState) -> set[str]:
    return {run_id for run_id, *_ in call.runs.values()}


def _ranks_of(call: CallState, mesh_id: str) -> dict[int, int]:
    """Return which ranks of a mesh have not answered, by their ranks in the addressed mesh."""
    return {
        rank: int(address.process.rpartition("/")[2])
        for rank, address in call.unanswered.items()
        if address.mesh_id == mesh_id
    }
