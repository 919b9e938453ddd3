"""The actors of a node's ranks and what they do. Asked while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from monarch_nb.allocator.readings.asking import Asking
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.config import cadence
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire

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
