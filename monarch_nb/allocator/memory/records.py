"""What a node writes down while it works, and how the allocator after it goes on by that."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable

from monarch_nb.allocator.memory.database import AcceptedRuns, Database, RunNumbers, leaving_key, rank_key, run_key
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.processes import boot_id, seconds_since_boot
from monarch_nb.allocator.processes.supervisor import RankProcess, Supervisor
from monarch_nb.allocator.processes.templates import ADOPT_WAIT_S
from monarch_nb.allocator.state.lease import Limits
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.config import NodePaths, cadence
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2
from monarch_nb.proto.files_pb2 import Peer


def read_state(
    database: Database,
    accepted: Iterable[state_pb2.RunRecord],
    state: NodeState,
    mesh_records: dict[str, state_pb2.MeshRecord],
) -> None:
    """Fill an empty state, and the records of the meshes of which this node has ranks or the store.

    Args:
        accepted: runs that may not be in the database yet.
    """
    now_s = seconds_since_boot()
    for key, lease in database.read("lease", state_pb2.LeaseRecord):
        limits = Limits.from_record(lease.limits, boot_id(), now_s, confirmed=lease.confirmed)
        gpus, nodes = list(lease.gpu_indices), list(lease.nodes)
        shares = dict(lease.shares)
        kept = lease.request, gpus, lease.confirmed, limits, nodes, lease.files, shares, lease.revision
        state.leases[key] = Lease(*kept)
    ended = [record for _, record in database.read("ended", pb.Ended)]
    state.ended = {record.reservation_id: record for record in sorted(ended, key=lambda one: one.ended_at)}
    for key, record in database.read("mesh", state_pb2.MeshRecord):
        mesh_records[key] = record
        if record.spec.ranks:  # else its ranks were never started
            spec = pb.SpawnRequest()
            spec.CopyFrom(record.spec)  # what the mesh is to become may differ
            state.meshes[key] = Mesh(spec)
    for _, rank in database.read("rank", state_pb2.RankRecord):
        death = rank.death if rank.HasField("death") else None
        if mesh_of_rank := state.meshes.get(rank.mesh_id):
            mesh_of_rank.ranks[rank.rank] = RankSlot(list(rank.gpu_indices), death)
    runs = {run.submit.run.run_id: run for run in accepted}
    runs.update((run.submit.run.run_id, run) for _, run in database.read("run", state_pb2.RunRecord))
    for run in sorted(runs.values(), key=lambda run: run.submit.run.number):
        if mesh_of_run := state.meshes.get(run.submit.mesh_id):
            mesh_of_run.add_run(Run.from_record(run))


_log = logging.getLogger(__name__)

FLUSH_DELAY_S = cadence(0.25)
"""Runs are written to the database a few at once: most are over and collected before they have to be. Their results the
ranks and the client know until then; when a client leaves, all that it knows is written at once."""

TRY_AGAIN_S = cadence(2.0)
"""After a flush that found no room: nothing tells when there is some again."""


class Records:
    """The records of a node's leases, meshes, processes and runs.

    Args:
        state: what is written down, and filled again by `read`.
        on_stored: called with (mesh id, rank, run ids) when results of a rank's are on the disk.

    Attributes:
        meshes: those of which this node has ranks or the store.
    """

    def __init__(self, paths: NodePaths, state: NodeState, on_stored: Callable[[str, int, list[str]], None]) -> None:
        self._state, self._on_stored = state, on_stored
        self._loop = asyncio.get_running_loop()
        self.database = Database(paths.database)
        self.meshes: dict[str, state_pb2.MeshRecord] = {}
        self._numbers, self._accepted = RunNumbers(paths), AcceptedRuns(paths)
        self._newest_runs: dict[str, str] = {}
        self._dirty_runs: set[tuple[str, str]] = set()
        self._unacknowledged: dict[tuple[str, int], list[str]] = {}
        self._flush_timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """Fill the state with what the allocator before this one knew."""
        accepted = self._accepted.read()
        read_state(self.database, accepted, self._state, self.meshes)
        keys = {(run.submit.mesh_id, run.submit.run.run_id) for run in accepted}
        self._dirty_runs |= {key for key in keys if key[0] in self._state.meshes}
        for mesh_id, mesh in self._state.meshes.items():
            mesh.last_number = self._numbers.newest(mesh)
            if mesh.runs:
                self._newest_runs[mesh_id] = max(mesh.runs.values(), key=lambda run: run.number).run_id

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
        self.database.put("lease", reservation_id, record)
        self.flush()

    def delete_lease(self, reservation_id: str) -> None:
        """The reservation is released."""
        self.database.delete("lease", reservation_id)
        self.flush()

    def save_end(self, ended: pb.Ended) -> None:
        """Write down that a reservation was released, and forget the ends that the state has forgotten."""
        self.database.put("ended", ended.reservation_id, ended)
        for key, _ in list(self.database.read("ended", pb.Ended)):
            if key not in self._state.ended:
                self.database.delete("ended", key)
        self.flush()

    def owed(self) -> list[pb.UndertakeRequest]:
        """Return what other nodes are still to be told to end, each by itself."""
        return [request for _, request in self.database.read("owed", pb.UndertakeRequest)]

    def save_owed(self, request: pb.UndertakeRequest) -> None:
        """Write down that nodes are to be told to end something."""
        for peer in request.nodes:
            owed = pb.UndertakeRequest()
            owed.CopyFrom(request)
            del owed.nodes[:]
            owed.nodes.append(peer)
            self.database.put("owed", owed_key(request, peer), owed)
        self.flush()

    def pay(self, key: str) -> None:
        """A node knows of what it was to be told."""
        self.database.delete("owed", key)
        self.flush()

    def undertakings(self) -> dict[str, pb.UndertakeRequest]:
        """Return what clients had begun on several nodes."""
        return dict(self.database.read("undertaking", pb.UndertakeRequest))

    def save_undertaking(self, key: str, request: pb.UndertakeRequest) -> None:
        """Write down what a client is about to do on several nodes."""
        self.database.put("undertaking", key, request)
        self.flush()

    def end_undertaking(self, key: str) -> None:
        """It is done, which an allocator that is killed the next moment must not forget: the next one would end it."""
        self.database.delete("undertaking", key)
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
        self.database.put("rank", rank_key(record.mesh_id, record.rank), record)

    def next_incarnation(self, mesh_id: str, rank: int) -> int:
        """Return what comes after the process of a rank that has ended."""
        for key, record in self.database.read("rank", state_pb2.RankRecord):
            if key == rank_key(mesh_id, rank):
                return record.incarnation + 1
        return 1

    def delete_ranks(self, ranks: Iterable[RankProcess]) -> None:
        """Nobody needs to know of these processes any more."""
        for process in ranks:
            self.database.delete("rank", rank_key(process.mesh_id, process.rank))
        self.flush_soon()

    def save_leaving(self, ranks: Iterable[RankProcess]) -> None:
        """Write down, with what comes, that these are to end: their successors have their keys."""
        for process in ranks:
            self.database.put("leaving", leaving_key(process.record), process.record)

    def delete_leaving(self, ranks: Iterable[RankProcess]) -> None:
        """They have ended."""
        for process in ranks:
            self.database.delete("leaving", leaving_key(process.record))
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
        self.database.delete("run", run_key(mesh_id, run_id))
        self._dirty_runs.discard((mesh_id, run_id))

    def acknowledge(self, mesh_id: str, rank: int, run_id: str) -> None:
        """Say that a rank's result of a run is stored, when it is."""
        self._unacknowledged.setdefault((mesh_id, rank), []).append(run_id)

    def _save_run(self, mesh: Mesh, run: Run) -> None:
        """Write a run down, unless its client has everything: then nobody will ask for it again. The newest is kept all
        the same: the next one says that it comes after it."""
        mesh_id = mesh.spec.mesh_id
        key = run_key(mesh_id, run.run_id)
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
            self._on_stored(mesh_id, rank, run_ids)
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


def owed_key(request: pb.UndertakeRequest, peer: Peer) -> str:
    """Return the key of what a node is to be told."""
    change = f"/{request.members.revision}" if request.HasField("members") else ""
    return f"{request.reservation_id}/{request.mesh_id}/{peer.address}{change}"


NO_PID = 1 << 30
"""Above every pid that Linux gives."""


class Adoption:
    """Connects to what still lives, and ends what nobody would know.

    Args:
        state, records: what was written down, as far as it was read.
    """

    def __init__(self, state: NodeState, records: Records, supervisor: Supervisor) -> None:
        self._state, self._records, self._supervisor = state, records, supervisor
        self._adopting: list[asyncio.Task[None]] = []

    async def adopt(self, resume_scripts: Callable[[list[state_pb2.RankRecord]], None]) -> None:
        """Adopt stores, templates and ranks; those that are too busy to say hello are adopted when they do.

        Args:
            resume_scripts: told the processes before they are adopted.
        """
        self._watch_stores()
        self._end_left()
        database, meshes = self._records.database, self._records.meshes
        ranks = [record for _, record in database.read("rank", state_pb2.RankRecord)]
        known = {record.process.pid for record in ranks} | {mesh.store.pid for mesh in meshes.values()}
        for _, record in list(database.read("template", state_pb2.TemplateRecord)):
            await self._supervisor.templates.adopt(record, known)
        resume_scripts(ranks)
        self._adopting = [asyncio.create_task(self._adopt(record)) for record in ranks]
        if self._adopting:
            done, _ = await asyncio.wait(self._adopting, timeout=ADOPT_WAIT_S)
            for task in done:
                task.result()

    def _watch_stores(self) -> None:
        for mesh_id, record in self._records.meshes.items():
            if record.HasField("store"):  # else another node has it
                pid = record.store.pid if processes.is_alive(record.store) else NO_PID
                self._supervisor.watch_store(mesh_id, pid)

    def _end_left(self) -> None:
        """An allocator was killed while it ended ranks that had successors."""
        database = self._records.database
        left = [record for _, record in database.read("leaving", state_pb2.RankRecord)]
        processes.kill_trees([(record.process, record.token) for record in left])
        database.delete_prefix("leaving", "")

    async def _adopt(self, record: state_pb2.RankRecord) -> None:
        if record.HasField("death") or (record.script_of or record.mesh_id) not in self._state.meshes:
            return
        await self._supervisor.adopt_rank(record)

    def close(self) -> None:
        """Wait for nobody any more."""
        for task in self._adopting:
            task.cancel()
