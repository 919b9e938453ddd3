"""What ranks and scripts may do before their time is up or the node is taken away. No kernel needs to be there.

Ranks save where that is armed, which is written down and told to every process. Scripts that have handlers for them get
the signals of an engine: it tells the processes that it has started, for a job of ours the allocator. Slurm tells no
other process of a step, whether it tracks them by control groups or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb.allocator.processes.processes import is_caught
from monarch_nb.config import HANDLES_S, cadence, patience
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.supervisor import RankProcess

_log = logging.getLogger(__name__)

TAKEN = "the node is taken away"
AGREEING = 0.4
"""The part of the grace in which a script can begin to save: the rest is for its own handler of SIGTERM."""
BEFORE_S = 600.0
"""How long before a time limit ranks save, when nobody says."""
ANSWER_S = patience(5.0)
"""Longer than they were given ranks may take to say that they have given up."""
FRESH_S = cadence(30.0)
"""Nodes ask their ranks each for itself: a save that another node's question has caused will do, or one since which
nothing was executed, if it is no older."""


class Grace:
    """The end of a node's ranks and scripts.

    Args:
        seconds: how long ranks may take to save, and scripts to end, before everything ends.
    """

    def __init__(self, node: Node, seconds: float) -> None:
        self._node, self._records, self._supervisor, self.seconds = node, node.records, node.supervisor, seconds
        self._asking = Tasks()

    # ---- saves ----

    def armed(self, mesh_id: str) -> run_pb2.ArmSaves | None:
        """Return what is armed for a mesh."""
        record = self._records.meshes.get(mesh_id)
        return record.saves if record is not None and record.saves.secret else None

    def arm(self, mesh_id: str, wanted: run_pb2.ArmSaves) -> None:
        """Arm a mesh, or disarm it (without a secret). Its ranks are told by whoever asks for it, its scripts here."""
        record = self._records.meshes.get(mesh_id)
        if record is None:
            return
        record.saves.CopyFrom(wanted)
        self._records.save_mesh(record)
        for process in self._of(mesh_id):
            if process.record.script_of:
                process.link.tell(wire.ControlRequest(arm_saves=wanted))

    def tell(self, process: RankProcess) -> None:
        """A process is there, perhaps a new one: it learns what is armed."""
        if (wanted := self.armed(process.home_id)) is not None:
            process.link.tell(wire.ControlRequest(arm_saves=wanted))

    def before_s(self, reservation_id: str) -> float:
        """Return how long before the end of a reservation its ranks are to save; 0: not at all."""
        armed = (self.armed(mesh_id) for mesh_id in self._meshes(reservation_id))
        return max((each.before_s or BEFORE_S for each in armed if each is not None and each.at_end), default=0.0)

    def ask_soon(self, reservation_id: str, why: str, within_s: float) -> None:
        """Have the ranks of a reservation save, while this goes on."""
        processes = [process for mesh_id in self._meshes(reservation_id) for process in self._of(mesh_id)]
        self._asking.start(self.save(processes, why, within_s))

    async def save(
        self, processes: Iterable[RankProcess], why: str, within_s: float, *, begin_within_s: float = 0.0
    ) -> None:
        """Have processes save, where that is armed; return when they have, or the time is over.

        Args:
            begin_within_s: what has not begun so soon is given up; 0: there is all the time.
        """
        armed = [process for process in processes if (saves := self.armed(process.home_id)) and saves.at_end]
        if not armed:
            return
        _log.info("%s: %d ranks are to save within %s", why, len(armed), duration(within_s))
        begin_within_s = begin_within_s or within_s
        wanted = run_pb2.SaveNow(why=why, within_s=begin_within_s, fresh_s=FRESH_S, is_last=True)
        patience_s = max(within_s, begin_within_s + ANSWER_S)
        asked = (process.link.control(wire.ControlRequest(save_now=wanted), patience_s) for process in armed)
        replies = await asyncio.gather(*asked)
        problems = {reply.saves.problem if reply is not None else "no answer" for reply in replies} - {""}
        paths = {reply.saves.path for reply in replies if reply is not None} - {""}
        if problems:
            _log.warning("%s: not saved: %s", why, "; ".join(sorted(problems)))
        else:
            _log.info("%s: saved %s", why, ", ".join(sorted(paths)))

    # ---- the end comes ----

    def warn(self) -> None:
        """The engine says that the node will be taken away: ranks save, and scripts get its SIGUSR1, which would end
        those that have no handler for it."""
        for reservation_id in self._node.state.leases:
            self.ask_soon(reservation_id, "the engine will take the node away", self.before_s(reservation_id))
        for processes in self._scripts().values():
            for process in _handling(processes, signal.SIGUSR1):
                _send(process, signal.SIGUSR1)

    def warn_of_end(self, reservation_id: str, left_s: float) -> None:
        """The time of a reservation is nearly up: tell scripts that have a handler for SIGTERM, as an engine does."""
        for run_id, processes in self._scripts().items():
            mesh = self._node.state.meshes.get(processes[0].home_id)
            if mesh is None or mesh.spec.reservation_id != reservation_id:
                continue
            told = _handling(processes, signal.SIGTERM)
            for process in told:
                _send(process, signal.SIGTERM)
            run = mesh.runs.get(run_id)
            if run and told and (first := min(mesh.all_ranks(run.submit))) in run.ranks:  # one node says it
                notice = f"the time is up in {duration(left_s)}: the script was sent SIGTERM"
                self._node.audience.say(run, first, notice)

    async def leave_in_peace(self) -> None:
        """Everything is about to end by a signal: ranks save, and scripts hear of it."""
        live = [process for process in self._supervisor.ranks.values() if not process.record.script_of]
        scripts = self._scripts().values()
        await asyncio.gather(self.save(live, TAKEN, self.seconds), *map(self._end_script, scripts))

    def end_soon(self, run_id: str) -> None:
        """Who waits for a script was told to end by SIGTERM, and hands it on."""
        processes = self._scripts().get(run_id, [])
        for process in processes:
            process.saves_until_s = time.monotonic() + HANDLES_S
        self._asking.start(self._end_script(processes))

    async def _end_script(self, processes: list[RankProcess]) -> None:
        """Have a script save, and tell it in time that it is to end: it may never come to a step to save at, but save
        when it is told."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.seconds
        begin_within_s = self.seconds * (AGREEING if _handling(processes, signal.SIGTERM) else 1.0)
        await self.save(processes, TAKEN, self.seconds, begin_within_s=begin_within_s)
        left = [process for process in processes if not process.watch.ended.is_set()]
        for process in left:
            _send(process, signal.SIGTERM, to_group=not process.link.is_open)  # a shell hands nothing on
        ends = [asyncio.create_task(process.watch.ended.wait()) for process in left]
        if ends:
            _, pending = await asyncio.wait(ends, timeout=max(0.0, until_s - loop.time()))
            for end in pending:
                end.cancel()

    def _scripts(self) -> dict[str, list[RankProcess]]:
        """Return the living processes of each script, by its run."""
        found: dict[str, list[RankProcess]] = {}
        for process in self._supervisor.ranks.values():
            if process.record.script_of:
                found.setdefault(process.mesh_id, []).append(process)
        return found

    def close(self) -> None:
        """Wait for nothing any more."""
        self._asking.cancel()

    def _meshes(self, reservation_id: str) -> list[str]:
        known = self._records.meshes.items()
        return [mesh_id for mesh_id, record in known if record.spec.reservation_id == reservation_id]

    def _of(self, mesh_id: str) -> list[RankProcess]:
        return [process for process in self._supervisor.ranks.values() if process.home_id == mesh_id]


def _handling(processes: Iterable[RankProcess], number: signal.Signals) -> list[RankProcess]:
    return [process for process in processes if is_caught(process.record.process.pid, number)]


def _send(process: RankProcess, number: signal.Signals, *, to_group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if to_group else os.kill)(process.record.process.pid, number)
