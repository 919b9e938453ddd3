"""What a run says of its nodes that do not answer, with what their engine says of their job, and of ranks that train a
model each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.state.lease import released
from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.runs.nodes import RunNodes
from monarch_nb.config import cadence, gap
from monarch_nb.errors import PoolError
from monarch_nb.provision import jobs

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run

ASK_AFTER_S = gap(1.0)
"""How long a node has not answered when its engine is asked: a link that is down for a moment is no reason."""
ASK_AGAIN_S = cadence(60.0)
"""How long it takes at most until it is asked again: it may learn of a machine that failed after minutes only."""
LOOK_AGAIN_S = cadence(1.0)
"""Between looks whether the reservation was released on this computer: a file tells, when no node can."""
_ADVICE = "away"


class Absences:
    """The lines below a run: one for each node that does not answer, and one that says what to do. Everything here runs
    on the background loop.

    Args:
        run: that is told when no job has nodes any more.
        nodes: its nodes.
        spawn: starts what ends with the run.
    """

    def __init__(self, run: Run, nodes: RunNodes, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._run, self._nodes, self._spawn = run, nodes, spawn
        self._said, self._is_asking, self._is_looking, self._has_advised = "", False, False, False

    def on_link(self, connection: Connection, up: bool) -> None:
        """A node does not answer any more, or answers again."""
        self._run.emit(events.Notice("" if up else connection.absence, key=_key(connection)))
        self._advise()
        if up:
            return
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._look())
        pool = self._run.mesh.reservation.pool
        if not self._is_asking and (jobs.job_of_pool(pool) or jobs.has_gone(pool)):
            self._is_asking = True
            self._spawn(self._ask())

    def keys(self) -> list[str]:
        """Return the keys of all lines that there were."""
        return [*(f"link {name}" for name in self._nodes.linked), *([_ADVICE] if self._has_advised else [])]

    def _advise(self) -> None:
        """Say what to do, once, below all nodes."""
        if self._has_advised:
            self._run.emit(events.Notice("", key=_ADVICE))
        text = ""
        if self._nodes.away():
            text = "; ".join(filter(None, [self._run.mesh.core.way_on(self._said), self._said]))
        if text:
            self._run.emit(events.Notice(text, key=_ADVICE))
        self._has_advised = bool(text)

    async def _look(self) -> None:
        """Have a local pool heal itself, and end the run when its reservation is released, until all nodes answer, who
        would say so."""
        held = self._run.mesh.reservation
        pool = pool_object(held.pool)
        try:
            while self._run.left() and self._nodes.away():
                if ended := pool.end_of(held.id):
                    self._run.on_refused(released(ended))
                    return
                lines: list[str] = []
                await asyncio.to_thread(pool.heal, lines.append)
                if lines:
                    self._run.emit(events.Notice("\n".join(lines), key="healed"))
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._is_looking = False

    async def _ask(self) -> None:
        """Ask the engine what has become of its jobs until all nodes answer, or it has ended them all."""
        wait_s = ASK_AFTER_S
        pool = self._run.mesh.reservation.pool
        try:
            while True:
                await asyncio.sleep(wait_s)
                if not self._nodes.away():
                    return
                said, is_over = await asyncio.to_thread(jobs.what_became, pool)
                if is_over and not self._nodes.reachable(self._run.left()):
                    self._run.on_refused(PoolError(said))
                    return
                if said != self._said:
                    self._said = said
                    self._advise()
                wait_s = min(2 * wait_s, ASK_AGAIN_S)
        finally:
            self._said, self._is_asking = "", False


def _key(connection: Connection) -> str:
    return f"link {connection.name}"


_QUIET_S = cadence(1.0)
"""It is said when no other rank has begun to train for so long, so that the line has their number."""


class LoneTraining:
    """What ranks of one run tell of models that they train without a process group. It may be meant: it is said once in
    the life of live ranks, so once for all cells of a mesh, and once for each script.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.has_told_lone_training = False
        self._ranks: defaultdict[str, set[int]] = defaultdict(set)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, model: str) -> None:
        """A rank trains a model: `model` is equal for those alike."""
        self._ranks[model].add(rank)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_QUIET_S, self.say)

    def say(self) -> None:
        """Say now what there is to say: the run has finished, or all who train have begun."""
        if self._timer is not None:
            self._timer.cancel()
        count = max(map(len, self._ranks.values()), default=0)
        teller = self if self._run.is_script else self._run.mesh.core
        if count > 1 and not teller.has_told_lone_training:
            teller.has_told_lone_training = True
            text = (
                f"{count} ranks each train a model of their own (no process group): "
                "dist.init_process_group() and DistributedDataParallel make it one"
            )
            self._run.emit(events.Notice(text, key="lone training"))
