"""What a node writes down while it works, and how the allocator after it goes on by that."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb.allocator.memory.database import AcceptedRuns, Database, Kind, RunNumbers, key_of
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.processes import boot_id, seconds_since_boot
from monarch_nb.allocator.processes.templates import ADOPT_WAIT_S
from monarch_nb.allocator.state.lease import Limits
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.allocator.state.state import Lease
from monarch_nb.config import cadence
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.supervisor import RankProcess

_log = logging.getLogger(__name__)

FLUSH_DELAY_S = cadence(0.25)
"""Runs are written to the database a few at once: most are over and collected before they have to be. Their results the
ranks and the client know until then; when a client leaves, all that it knows is written at once."""

TRY_AGAIN_S = cadence(2.0)
"""After a flush that found no room: nothing tells when there is some again."""

NO_PID = 1 << 30
"""Above every pid that Linux gives."""


class Records:
    """The records of a node's leases, meshes, processes and runs.

    Args:
        node: whose state is written down, and filled again by `read`. Its ranks are told when results are on the disk.

    Attributes:
        meshes: those of which this node has ranks or the store.
        adopting: connects to ranks that were too busy to say hello at once.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._state = node, node.state
        self._loop = asyncio.get_running_loop()
        self.database = Database(node.paths.database)
        self.meshes: dict[str, state_pb2.MeshRecord] = {}
        self._numbers, self._accepted = RunNumbers(node.paths), AcceptedRuns(node.paths)
        self.adopting: list[asyncio.Task[None]] = []
        self._newest_runs: dict[str, str] = {}
        self._dirty_runs: set[tuple[str, str]] = set()
        self._unacknowledged: dict[tuple[str, int], list[str]] = {}
        self._flush_timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """Fill the state with what the allocator before this one knew."""
        state, now_s = self._state, seconds_since_boot()
        for key, lease in self.database.read("lease", state_pb2.LeaseRecord):
            limits = Limits.from_record(lease.limits, boot_id(), now_s, confirmed=lease.confirmed)
            gpus, nodes, shares = list(lease.gpu_indices), list(lease.nodes), dict(lease.shares)
            kept = lease.request, gpus, lease.confirmed, limits, nodes, lease.files, shares, lease.revision
            state.leases[key] = Lease(*kept)
        ended = [record for _, record in self.database.read("ended", pb.Ended)]
        state.ended = {record.reservation_id: record for record in sorted(ended, key=lambda one: one.ended_at)}
        for key, record in self.database.read("mesh", state_pb2.MeshRecord):
            self.meshes[key] = record
            if record.spec.ranks:  # else its ranks were never started
                state.meshes[key] = Mesh(record.spec)
        for _, rank in self.database.read("rank", state_pb2.RankRecord):
            death = rank.death if rank.HasField("death") else None
            if mesh := state.meshes.get(rank.mesh_id):
                mesh.ranks[rank.rank] = RankSlot(list(rank.gpu_indices), death)
        self._read_runs()

    def _read_runs(self) -> None:
        accepted = self._accepted.read()
        runs = {run.submit.run.run_id: run for run in accepted}  # which may not be in the database yet
        runs.update((run.submit.run.run_id, run) for _, run in self.database.read("run", state_pb2.RunRecord))
        for run in sorted(runs.values(), key=lambda run: run.submit.run.number):
            if mesh := self._state.meshes.get(run.submit.mesh_id):
                mesh.add_run(Run.from_record(run))
        keys = {(run.submit.mesh_id, run.submit.run.run_id) for run in accepted}
        self._dirty_runs |= {key for key in keys if key[0] in self._state.meshes}
        for mesh_id, mesh in self._state.meshes.items():
            mesh.last_number = self._numbers.newest(mesh)
            if mesh.runs:
                self._newest_runs[mesh_id] = max(mesh.runs.values(), key=lambda run: run.number).run_id

    async def adopt(self) -> None:
        """Adopt stores, templates and ranks; those that are too busy to say hello are adopted when they do."""
        database, supervisor = self.database, self._node.supervisor
        for mesh_id, mesh in self.meshes.items():
            if mesh.HasField("store"):  # else another node has it
                supervisor.watch_store(mesh_id, mesh.store.pid if processes.is_alive(mesh.store) else NO_PID)
        # An allocator was killed while it ended ranks that had successors.
        left = [record for _, record in database.read("leaving", state_pb2.RankRecord)]
        processes.kill_trees([(record.process, record.token) for record in left])
        database.delete_prefix("leaving", "")
        ranks = [record for _, record in database.read("rank", state_pb2.RankRecord)]
        known = {record.process.pid for record in ranks} | {mesh.store.pid for mesh in self.meshes.values()}
        for _, record in list(database.read("template", state_pb2.TemplateRecord)):
            await supervisor.templates.adopt(record, known)
        self._node.scripts.resume(ranks)
        self.adopting = [asyncio.create_task(self._adopt(record)) for record in ranks]
        if self.adopting:
            done, _ = await asyncio.wait(self.adopting, timeout=ADOPT_WAIT_S)
            for task in done:
                task.result()

    async def _adopt(self, record: state_pb2.RankRecord) -> None:
        if record.HasField("death") or (record.script_of or record.mesh_id) not in self._state.meshes:
            return
        await self._node.supervisor.adopt_rank(record)

    # ---- leases ----

    def save_lease(self, reservation_id: str) -> None:
        """Write a lease down."""
        lease = self._state.leases[reservation_id]
        record = state_pb2.LeaseRecord(
            request=lease.request,
            gpu_indices=lease.gpu_indices,
            confirmed=lease.confirmed,
            limits=lease.limits.record(processes.boot_id()),
            nodes=lease.nodes,
            files=lease.files,
            shares=lease.shares,
            revision=lease.revision,
        )
        self.save("lease", reservation_id, record)

    def save_end(self, ended: pb.Ended) -> None:
        """Write down that a reservation was released, and forget the ends that the state has forgotten."""
        self.database.put("ended", ended.reservation_id, ended)
        for key, _ in list(self.database.read("ended", pb.Ended)):
            if key not in self._state.ended:
                self.database.delete("ended", key)
        self.flush()

    def save(self, kind: Kind, key: str, record: Message) -> None:
        """Write a record down at once."""
        self.database.put(kind, key, record)
        self.flush()

    def forget(self, kind: Kind, key: str) -> None:
        """Delete a record at once."""
        self.database.delete(kind, key)
        self.flush()

    # ---- meshes ----

    def save_mesh(self, record: state_pb2.MeshRecord) -> None:
        """Know a mesh, of which this node has ranks or the store."""
        self.meshes[record.spec.mesh_id] = record
        self.database.put("mesh", record.spec.mesh_id, record)
        self.flush_soon()

    def close_mesh(self, mesh_id: str) -> None:
        """The state does not know the mesh any more: its runs are not written again."""
        self._dirty_runs = {key for key in self._dirty_runs if key[0] != mesh_id}
        self._newest_runs.pop(mesh_id, None)

    def delete_mesh(self, mesh_id: str) -> None:
        """Forget a mesh with all that was its."""
        self.meshes.pop(mesh_id, None)
        self._numbers.forget(mesh_id)
        self.database.delete("mesh", mesh_id)
        self.database.delete_prefix("rank", f"{mesh_id}/")
        self.database.delete_prefix("leaving", f"{mesh_id}/")
        self.database.delete_prefix("run", f"{mesh_id}/")

    # ---- processes ----

    def save_template(self, key: str, record: state_pb2.TemplateRecord | None) -> None:
        """Write a template down; None: it has ended."""
        if record is None:
            self.database.delete("template", key)
            self.flush_soon()
        else:
            self.database.put("template", key, record)
            self.flush()  # at once: whoever is killed before leaves a process to nobody

    def save_rank(self, record: state_pb2.RankRecord) -> None:
        """Write a rank's process down at the next flush."""
        self.database.put("rank", key_of(record.mesh_id, record.rank), record)

    def next_incarnation(self, mesh_id: str, rank: int) -> int:
        """Return what comes after the process of a rank that has ended."""
        for key, record in self.database.read("rank", state_pb2.RankRecord):
            if key == key_of(mesh_id, rank):
                return record.incarnation + 1
        return 1

    def delete_ranks(self, ranks: Iterable[RankProcess]) -> None:
        """Nobody needs to know of these processes any more."""
        for process in ranks:
            self.database.delete("rank", key_of(process.mesh_id, process.rank))
        self.flush_soon()

    def save_leaving(self, ranks: Iterable[RankProcess]) -> None:
        """Write down, with what comes, that these are to end: their successors have their keys."""
        for process in ranks:
            self.database.put("leaving", key_of(process.mesh_id, process.record.token), process.record)

    def delete_leaving(self, ranks: Iterable[RankProcess]) -> None:
        """They have ended."""
        for process in ranks:
            self.database.delete("leaving", key_of(process.mesh_id, process.record.token))
        self.flush_soon()

    # ---- runs ----

    def note_number(self, mesh_id: str, number: int) -> None:
        """Write the newest run's number of a mesh down, before anybody is told of it."""
        self._numbers.note(mesh_id, number)

    def run_added(self, mesh_id: str, run_id: str) -> None:
        """A mesh has a run that is newer than all others. It is known to the next allocator from now on."""
        if run := self._state.meshes[mesh_id].runs.get(run_id):
            self._accepted.add(run.record())
        older = self._newest_runs.get(mesh_id, run_id)
        self._newest_runs[mesh_id] = run_id
        self._dirty_runs |= {(mesh_id, older), (mesh_id, run_id)}
        self.flush_soon()

    def run_changed(self, mesh_id: str, run_id: str) -> None:
        """Write a run at the next flush."""
        self._dirty_runs.add((mesh_id, run_id))

    def delete_run(self, mesh_id: str, run_id: str) -> None:
        """The state does not know a run any more."""
        self.database.delete("run", key_of(mesh_id, run_id))
        self._dirty_runs.discard((mesh_id, run_id))

    def acknowledge(self, mesh_id: str, rank: int, run_id: str) -> None:
        """Say that a rank's result of a run is stored, when it is."""
        self._unacknowledged.setdefault((mesh_id, rank), []).append(run_id)

    def _save_run(self, mesh: Mesh, run: Run) -> None:
        """Write a run down, unless its client has everything: then nobody will ask for it again. The newest is kept all
        the same: the next one says that it comes after it."""
        mesh_id = mesh.spec.mesh_id
        key = key_of(mesh_id, run.run_id)
        if run.finished and run.collected and self._newest_runs.get(mesh_id) != run.run_id:
            self.database.delete("run", key)
        else:
            self.database.put("run", key, run.record())

    # ---- to the disk ----

    def flush_soon(self) -> None:
        """Write down what has changed, with what changes in the next moments."""
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_DELAY_S, self.flush)

    def flush(self) -> None:
        """Write down what has changed."""
        self._cancel_timer()
        for mesh_id, run_id in self._dirty_runs:
            mesh = self._state.meshes[mesh_id]
            if run := mesh.runs.get(run_id):
                self._save_run(mesh, run)
        self._dirty_runs.clear()
        try:
            self.database.flush()
        except sqlite3.Error as error:  # a full disk: ranks keep their results until it can be written
            _log.warning("state can not be written: %s", error)
            self._flush_timer = self._loop.call_later(TRY_AGAIN_S, self.flush)
            return
        self._accepted.clear()
        for (mesh_id, rank), run_ids in self._unacknowledged.items():
            if process := self._node.supervisor.ranks.get((mesh_id, rank)):
                process.link.forget_results(run_ids)
        self._unacknowledged.clear()

    def _cancel_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def close(self) -> None:
        """Write what is left, and no more."""
        self.flush()
        self._cancel_timer()
        self.database.close()
        self._accepted.close()
        self._numbers.close()
