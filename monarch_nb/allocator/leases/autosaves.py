"""Saves that the ranks of a node make by themselves: what is armed is written down and told to every process, and ranks
are asked to save when the node is about to be taken away. No kernel needs to be there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.supervision.supervisor import RankProcess, Supervisor
from monarch_nb.config import cadence, patience
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.times import duration

_log = logging.getLogger(__name__)

BEFORE_S = 600.0
"""How long before a time limit ranks save, when nobody says."""
ANSWER_S = patience(5.0)
"""Longer than they were given ranks may take to say that they have given up."""
FRESH_S = cadence(30.0)
"""Nodes ask their ranks each for itself: a save that another node's question has caused will do, or one since which
nothing was executed, if it is no older."""


class Autosaves:
    """The saves by itself of a node's meshes."""

    def __init__(self, records: Records, supervisor: Supervisor) -> None:
        self._records, self._supervisor = records, supervisor
        self._asking: set[asyncio.Task[None]] = set()

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
        task = asyncio.get_running_loop().create_task(self.save(processes, why, within_s))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def save(
        self, processes: Iterable[RankProcess], why: str, within_s: float, *, begin_within_s: float = 0.0
    ) -> None:
        """Have processes save, where that is armed; return when they have, or the time is over.

        Args:
            begin_within_s: what has not begun so soon is given up; 0: there is all the time.
        """
        armed = [process for process in processes if self._saves_at_end(process.home_id)]
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

    def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._asking:
            task.cancel()

    def _saves_at_end(self, mesh_id: str) -> bool:
        armed = self.armed(mesh_id)
        return armed is not None and armed.at_end

    def _meshes(self, reservation_id: str) -> list[str]:
        known = self._records.meshes.items()
        return [mesh_id for mesh_id, record in known if record.spec.reservation_id == reservation_id]

    def _of(self, mesh_id: str) -> list[RankProcess]:
        return [process for process in self._supervisor.ranks.values() if process.home_id == mesh_id]
