"""Where ranks are, and what their actors do: asked while somebody looks, each control thread once a second at most, and
nobody waits long for those that do not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import cadence, patience
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

INTERVAL_S = cadence(0.9)
WAIT_S = cadence(0.2)
"""How long to wait for answers; later ones are told the next time."""
FORGOTTEN_S = cadence(10.0)
"""Who was not asked for so long may do something else by now."""


@dataclass
class Asked:
    """What is known of a process; times are of the monotonic clock.

    Attributes:
        asked_s: when it was asked last.
        reply: its newest answer; None when there is none. replied_s: when that came.
    """

    task: asyncio.Task[None]
    asked_s: float
    reply: wire.ControlReply | None = None
    replied_s: float = 0.0


class Asking:
    """Asks processes, which are known by their pids.

    Args:
        question: what they are asked.
        keep: an answer holds until there is another one; else it is gone when its process does not answer any more.
    """

    def __init__(self, question: wire.ControlRequest, *, keep: bool) -> None:
        self._question, self._keep = question, keep
        self._asked: dict[int, Asked] = {}

    def forget_others(self, pids: Collection[int]) -> None:
        """Know nothing of other processes than these."""
        self._asked = {pid: asked for pid, asked in self._asked.items() if pid in pids}

    async def ask(self, processes: Mapping[int, RankProcess]) -> None:
        """Ask those of these processes whose turn it is, and wait a little for all answers that are due."""
        now_s = time.monotonic()
        for pid, process in processes.items():
            known = self._asked.get(pid)
            if known is None or (known.task.done() and now_s - known.asked_s > INTERVAL_S):
                before = self.of(pid)
                asked = Asked(asyncio.create_task(self._ask(pid, process)), now_s)
                if before is not None:
                    asked.reply, asked.replied_s = before.reply, before.replied_s
                self._asked[pid] = asked
        if tasks := [asked.task for asked in self._asked.values() if not asked.task.done()]:
            await asyncio.wait(tasks, timeout=WAIT_S)

    async def _ask(self, pid: int, process: RankProcess) -> None:
        question = wire.ControlRequest()
        question.CopyFrom(self._question)
        reply = await process.link.control(question, patience(5.0))
        if (asked := self._asked.get(pid)) and (reply is not None or not self._keep):
            asked.reply, asked.replied_s = reply, time.monotonic()

    def of(self, pid: int) -> Asked | None:
        """Return what is known of a process, if that is not too old."""
        asked = self._asked.get(pid)
        return None if asked is None or time.monotonic() - asked.asked_s > FORGOTTEN_S else asked


LASTS_S = cadence(1.5)
"""Shorter runs are not asked about."""


class Whereabouts:
    """Asks the control threads of a node's ranks, each once a second at most.

    Args:
        ranks: the living processes, as they come and go.
    """

    def __init__(self, state: NodeState, ranks: Mapping[tuple[str, int], RankProcess]) -> None:
        self._state, self._ranks = state, ranks
        self._asking = Asking(wire.ControlRequest(where=wire.GetWhere()), keep=False)

    async def refresh(self) -> None:
        """Ask those ranks that have been running for a while, and wait a little for their answers."""
        running = self._running()
        self._asking.forget_others(running)
        await self._asking.ask(running)

    def _running(self) -> dict[int, RankProcess]:
        started_before = time.time() - LASTS_S
        running = {}
        for process in self._ranks.values():
            mesh = self._state.meshes.get(process.home_id)
            slot = mesh.ranks.get(process.rank) if mesh else None
            run_id = process.mesh_id if process.record.script_of else slot.running if slot else ""
            run = mesh.runs.get(run_id) if mesh else None
            if run is not None and run.started_at < started_before:
                running[process.record.process.pid] = process
        return running

    def of(self, pid: int, run_id: str) -> run_pb2.Where | None:
        """Return where a process is in the run that it executes, if that is known."""
        asked = self._asking.of(pid)
        if asked is None or asked.reply is None or asked.reply.where.run_id != run_id:
            return None
        return asked.reply.where


NONE_INTERVAL_S = cadence(5.0)
"""How often ranks are asked that have no actors."""
SETTLES_S = cadence(2.0)
"""Those that got mail so recently are asked more often: what they got may become an actor."""
MAX_ACTORS = 32
"""Of a rank that has more, only so many are told."""
MAX_FAILURE_CHARACTERS = 300


class RankActors:
    """Asks the control threads of a node's ranks, each once a second at most; those without actors hardly ever.

    Args:
        ranks: the living processes, as they come and go.
    """

    def __init__(self, ranks: Mapping[tuple[str, int], RankProcess]) -> None:
        self._ranks = ranks
        self._asking = Asking(wire.ControlRequest(actors=wire.GetActors()), keep=True)

    async def refresh(self) -> None:
        """Ask those ranks that may have actors, and wait a little for their answers."""
        processes = {
            process.record.process.pid: process for process in self._ranks.values() if not process.record.script_of
        }
        self._asking.forget_others(processes)
        await self._asking.ask({pid: process for pid, process in processes.items() if self._may_have(pid, process)})

    def _may_have(self, pid: int, process: RankProcess) -> bool:
        asked = self._asking.of(pid)
        if asked is None or asked.reply is None or asked.reply.actors:
            return True
        waited_s = time.monotonic() - asked.asked_s
        return waited_s > NONE_INTERVAL_S or process.link.mail.sent_s > asked.asked_s - SETTLES_S

    def of(self, pid: int) -> tuple[Sequence[run_pb2.ActorStatus], int]:
        """Return the actors of a process as it said last, and how many more it has. Those that have failed come first,
        then those at work."""
        asked = self._asking.of(pid)
        if asked is None or asked.reply is None:
            return (), 0
        told = sorted(asked.reply.actors, key=lambda actor: (not actor.failure, not actor.running))
        since_s = time.monotonic() - asked.replied_s
        return [_shortened(actor, since_s) for actor in told[:MAX_ACTORS]], max(0, len(told) - MAX_ACTORS)

    def memory_bytes(self, pid: int) -> int:
        """Return the memory of the processes that a process has its actors in, as it said last."""
        asked = self._asking.of(pid)
        told = asked.reply.actors if asked is not None and asked.reply is not None else ()
        return sum({actor.pid: actor.memory_bytes for actor in told}.values())


def _shortened(actor: run_pb2.ActorStatus, since_s: float) -> run_pb2.ActorStatus:
    """Return an actor with the line of its failure that says most, and as long at work as it is by now."""
    short = run_pb2.ActorStatus()
    short.CopyFrom(actor)
    short.failure = (actor.failure.strip().splitlines() or [""])[-1].strip()[:MAX_FAILURE_CHARACTERS]
    if actor.running:
        short.running_s += since_s
    return short
