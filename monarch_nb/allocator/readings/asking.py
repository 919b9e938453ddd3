"""A question to the control threads of many processes: each is asked once a second at most, and nobody waits long for
those that do not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.config import cadence, patience
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
