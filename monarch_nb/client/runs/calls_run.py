"""A run of calls: what a notebook's cell, or a script, calls of the actors of a mesh, so that what they print has a
number, files and followers as a cell's output has."""

from __future__ import annotations

import asyncio
import functools
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch_nb.branches.folding import ranges_of
from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.connection import GAP_S, Connection
from monarch_nb.client.runs.interrupting import STOP_WAIT_S, InterruptReport, sorted_out
from monarch_nb.client.runs.run import Run
from monarch_nb.config import cadence
from monarch_nb.errors import MeshNotFound, MonarchNbError, ReservationNotFound
from monarch_nb.ground.flag import Flag
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

LOOK_S = cadence(0.1)
"""So often it is asked whether endpoints have ended after an interrupt: nothing tells that to who did not call them."""


@functools.cache
def this_client() -> str:
    """Return how this process is called in its runs of calls (`client` of run.proto's Calls)."""
    return uuid.uuid4().hex


class CallsRun(Run):
    """A run of calls, which goes on until who has opened it ends it. No rank begins or finishes it.

    Attributes:
        is_ended: this process has ended it.
        waits_everywhere: what prints there looks for the newest run itself, so all nodes must know it first.
    """

    waits_everywhere = False

    def __init__(self, mesh: Mesh, run_id: str, *arguments: Any, **options: Any) -> None:
        super().__init__(mesh, run_id, *arguments, **options)
        self.is_calls = True
        self.is_ended = False
        self._known, self._known_everywhere, self._printed = Flag(), Flag(), Flag()
        self._heard: set[int] = set()

    def wait_number(self, timeout_s: float) -> bool:
        """Wait until it has its number; return whether it has. It will never have one when it was refused."""
        self._known.wait(timeout_s)
        return bool(self.number)

    def wait_everywhere(self, timeout_s: float) -> None:
        """Wait until all nodes that answer know it: what others than ranks print there finds its place."""
        self._known_everywhere.wait(timeout_s)

    def end(self) -> None:
        """Nothing more is called in its name; does not wait. What still prints is shown on."""
        post(self._end)

    def wait_printed(self, timeout_s: float) -> None:
        """Wait after its end until all that was printed in its name is here, but not for nodes that are away."""
        self._printed.wait(timeout_s)

    # ---- on the background loop ----

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """Open it: on the first node, which gives it its number, and passes it on to the others."""
        super().submit(spec)
        for task in self._tasks:  # it waits for nothing
            task.cancel()

    def on_queued(self, queued: pb.Queued) -> None:
        """As a run's."""
        super().on_queued(queued)
        self._known.set()
        self._heard.update(ranges_of(queued.nodes))
        if len(self._heard) >= len(self.mesh.core.by_node(self.ranks)):
            self._known_everywhere.set()
        if self.is_ended:
            self._tell_ended()

    def on_refused(self, error: MonarchNbError) -> None:
        """As a run's; that the mesh was stopped or released, who calls is told."""
        if isinstance(error, MeshNotFound | ReservationNotFound):
            self.mesh.core.is_over = True
        if self.number and isinstance(error, MeshNotFound):
            self._finish()
        else:
            super().on_refused(error)
        self._known.set()
        self._known_everywhere.set()

    def on_finished(self, finished: pb.Finished) -> None:
        """As a run's."""
        super().on_finished(finished)
        self._check_printed()

    def on_link(self, connection: Connection, up: bool) -> None:
        """As a run's."""
        super().on_link(connection, up)
        self._check_printed()

    def _watch_waits(self) -> None:
        """Who calls sees what it waits for."""

    def _end(self) -> None:
        self.is_ended = True
        if self.number and not self.done:
            self._tell_ended()
        self._check_printed()

    def _check_printed(self) -> None:
        if self.is_ended and not self._nodes.reachable(self.left()):
            self._printed.set()

    def _finish(self) -> None:
        super()._finish()
        self._printed.set()

    def _tell_ended(self) -> None:
        self._nodes.session.end_calls(self.id)

    async def stop_ranks(self, *, kill_stuck: bool = False) -> InterruptReport:
        """Interrupt what is executed in its name. It goes on itself, as long as who has opened it wants that."""
        before = self.results.keys() | self.finished_before
        left = [rank for rank in self.ranks if rank not in before]
        restarted: list[int] = []
        if kill_stuck:
            executing = await self._executing(self._nodes.reachable(left))
            restarted = [rank for rank in executing if rank in self._freeing.doomed.ranks] or list(executing)
            await self.mesh.core.restart(restarted)
        else:
            self.send_interrupt()
        reachable, executing = await self._still_executing(left)
        stuck, handling = sorted_out(executing, executing)
        told = self._freeing.doomed.judge(InterruptReport(stuck=stuck, handling=handling))
        self._freeing.is_unstopped = bool(executing)
        self._freeing.say(told)
        self._nodes.withdraw_cancel(self.id, self.ranks)
        self._freeing.freed.set()
        return replace(
            told,
            stopped=tuple(rank for rank in reachable if rank not in executing and rank not in restarted),
            free=tuple(sorted(before)),
            unreachable={rank: self._nodes.name_of(rank) for rank in left if rank not in reachable},
            restarted=tuple(restarted),
            had_actors=True,
        )

    async def _executing(self, ranks: list[int]) -> dict[int, run_pb2.Where]:
        """Return the ranks that execute something in its name, and where."""
        told = await self.mesh.core.where(ranks, self.id)
        idle = (run_pb2.Where.STATE_UNSPECIFIED, run_pb2.Where.STATE_IDLE)
        return {rank: where for rank, where in told.items() if where.state not in idle}

    async def _still_executing(self, ranks: list[int]) -> tuple[list[int], dict[int, run_pb2.Where]]:
        """Wait a few seconds until nothing is executed in its name; return the ranks that can be reached, and what they
        execute. Nodes that do not answer have the time to start an allocator."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        while True:
            reachable = self._nodes.reachable(ranks)
            executing = await self._executing(reachable)
            waits_s = max(STOP_WAIT_S if executing else 0.0, GAP_S if len(reachable) < len(ranks) else 0.0)
            if loop.time() - since_s >= waits_s:
                return reachable, executing
            await asyncio.sleep(LOOK_S)
