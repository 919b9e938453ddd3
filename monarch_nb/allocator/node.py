"""A node: carries out what its state decides, with its supervisor, its database and its clients' sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.allocator.logs.limit import LogLimit
from monarch_nb.allocator.logs.output import RankFiles, stored_outputs
from monarch_nb.allocator.logs.watch import DirectoryWatch
from monarch_nb.allocator.ranks.restarts import Restarts
from monarch_nb.allocator.ranks.scripts import Scripts
from monarch_nb.allocator.ranks.specs import Plan, plan_rank, start_directory
from monarch_nb.allocator.ranks.stores import Stores
from monarch_nb.allocator.readings.load import Readings
from monarch_nb.allocator.readings.whereabouts import Whereabouts
from monarch_nb.allocator.recovery.database import Database, rank_key, run_key
from monarch_nb.allocator.recovery.remember import RunNumbers, read_state
from monarch_nb.allocator.serving.describe import describe_ranks
from monarch_nb.allocator.serving.read_lines import LogLines
from monarch_nb.allocator.sessions.audience import Audience
from monarch_nb.allocator.sessions.expiry import Expiry
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.state.limits import expired
from monarch_nb.allocator.state.runs import Effect, Mesh, RankFinished, Run, RunDropped, StartRun
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.supervisor import ADOPT_WAIT_S, RankProcess, Supervisor
from monarch_nb.errors import MeshNotFound, MonarchNbError, ReservationNotFound, RunNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.status import error_to_json

_log = logging.getLogger(__name__)

FLUSH_DELAY_S = 0.25
"""Runs are written down a few at once: the ranks and the client know what is not written yet, and most runs are over
and collected before they have to be."""
KEPT_BUNDLE_BYTES = 4_000
"""A collected result that is no larger is still there to be shown once more."""
NO_PID = 1 << 30
"""Above every pid that Linux gives."""
RELEASED = "the mesh was released while the run went on"
STDERR_TAIL_LINES = 8


class Node:
    """One allocator's node.

    Args:
        paths: where everything of it lies.
        node_id: "node0"; unique in the pool.
        procs: CPU slots. gpus: its GPUs.
        python, preload: of the template that is kept warm.
        store_host: the interface on which stores listen.
        isolated: see no files of clients, even when they are on this machine.
        log_limit_bytes: how much of what ranks print is kept; 0 for all.
    """

    def __init__(
        self,
        paths: config.NodePaths,
        node_id: str,
        *,
        procs: int,
        gpus: list[pb.Gpu],
        python: str,
        preload: list[str],
        store_host: str = "127.0.0.1",
        isolated: bool = False,
        log_limit_bytes: int = 0,
    ) -> None:
        self.paths, self.node_id, self.gpus, self.store_host = paths, node_id, gpus, store_host
        self.python, self.preload, self.isolated = python, preload, isolated
        self.token = uuid.uuid4().hex
        self.state = NodeState(procs, [gpu.index for gpu in gpus])
        self.sessions: set[Session] = set()
        self.shutdown = asyncio.Event()
        self.template_error = ""
        self.template_ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.database = Database(paths.database)
        self._numbers = RunNumbers(paths)
        self.watch = DirectoryWatch(self._loop)
        self.audience = Audience(self.sessions, self.watch, paths)
        self.files = NodeFiles(node_id, paths)
        self.expiry = Expiry(self)
        self.log_lines = LogLines(self)
        self.log_limit = LogLimit(self, log_limit_bytes)
        self.readings = Readings(gpus)
        self.whereabouts = Whereabouts(self)
        self.restarts = Restarts(self)
        self.scripts = Scripts(self)
        self.stores = Stores(self)
        self.supervisor = Supervisor(
            paths, self._on_result, self._on_hello, self._on_death, self.stores.on_death, self._save_template
        )
        self._dirty_runs: set[tuple[str, str]] = set()
        self._unacknowledged: dict[tuple[str, int], list[str]] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self.mesh_records: dict[str, state_pb2.MeshRecord] = {}
        self._newest_runs: dict[str, str] = {}
        self.releases: dict[str, asyncio.Task[int]] = {}
        self._adopting: list[asyncio.Task[None]] = []

    # ---- start and end ----

    async def start(self) -> None:
        """Read the database, adopt what still lives, and begin to warm the default template."""
        self._read_state()
        self.restarts.end_left()
        ranks = [record for _, record in self.database.read("rank", state_pb2.RankRecord)]
        known = {record.process.pid for record in ranks} | {mesh.store.pid for mesh in self.mesh_records.values()}
        for _, record in list(self.database.read("template", state_pb2.TemplateRecord)):
            await self.supervisor.adopt_template(record, known)
        self.scripts.resume(ranks)
        self._adopting = [self._loop.create_task(self._adopt(record)) for record in ranks]
        if self._adopting:
            done, _ = await asyncio.wait(self._adopting, timeout=ADOPT_WAIT_S)
            for task in done:
                task.result()
        await self.files.release_others(self.state.leases)
        self.flush()
        self.expiry.resume()
        self.log_limit.start()
        self._warming = asyncio.create_task(self._warm())

    def _read_state(self) -> None:
        read_state(self.database, self.state, self.mesh_records)
        for mesh_id, mesh in self.state.meshes.items():
            mesh.last_number = self._numbers.newest(mesh)
            if mesh.runs:
                self._newest_runs[mesh_id] = max(mesh.runs.values(), key=lambda run: run.number).run_id
        for mesh_id, record in self.mesh_records.items():
            if record.HasField("store"):  # else another node has it
                pid = record.store.pid if processes.is_alive(record.store) else NO_PID
                self.supervisor.watch_store(mesh_id, pid)
        self._remove_unknown_meshes()

    def _remove_unknown_meshes(self) -> None:
        """An allocator was killed while it spawned or released them."""
        self.files.removal.resume()
        with contextlib.suppress(FileNotFoundError):
            for directory in self.paths.meshes.iterdir():
                if directory.name not in self.mesh_records:
                    self.files.removal.remove(directory)

    async def _adopt(self, record: state_pb2.RankRecord) -> None:
        if record.HasField("death") or (record.script_of or record.mesh_id) not in self.state.meshes:
            return
        await self.supervisor.adopt_rank(record)

    async def _warm(self) -> None:
        try:
            await self.supervisor.template(self.python, self.preload)
        except MonarchNbError as error:
            self.template_error = str(error)
        self.template_ready.set()

    async def close(self, *, end_processes: bool) -> None:
        """Stop; with `end_processes` everything of the node ends and its files are removed."""
        for task in (self._warming, *self._adopting):
            task.cancel()
        self.expiry.close()
        self.log_limit.close()
        self.scripts.close()
        if end_processes:  # before anything that takes long: whoever kills this allocator meanwhile leaves none behind
            await self.supervisor.close(end_processes=True)
        await asyncio.gather(*self.releases.values(), *self.restarts.ending, return_exceptions=True)
        if not end_processes:
            await self.supervisor.close(end_processes=False)
        self.flush()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self.database.close()
        self._numbers.close()
        self.watch.close()
        await self.log_lines.close()
        await self.files.close()
        if end_processes:
            names = {reservation_id: lease.request.name for reservation_id, lease in self.state.leases.items()}
            await asyncio.to_thread(self.files.remove_all, names)

    # ---- leases ----

    async def look_at_gpus(self) -> None:
        """See which GPUs can be used: those that can not are not leased until they can again."""
        if self.gpus:
            self.state.gpu_troubles = await self.readings.gpu_troubles()

    def reserve(self, request: pb.ReserveRequest) -> list[int]:
        """Lease slots provisionally; return the GPUs' indices."""
        lease = self.state.reserve(request)
        self.expiry.watch(request.reservation_id)
        self.save_lease(request.reservation_id)
        return lease.gpu_indices

    def confirm(self, request: pb.ConfirmRequest) -> None:
        self.state.confirm(request.reservation_id, request.nodes, processes.seconds_since_boot())
        self.expiry.watch(request.reservation_id)
        self.save_lease(request.reservation_id)

    def save_lease(self, reservation_id: str) -> None:
        """Write a lease down."""
        lease = self.state.leases[reservation_id]
        record = state_pb2.LeaseRecord(
            request=lease.request,
            gpu_indices=lease.gpu_indices,
            confirmed=lease.confirmed,
            limits=lease.limits.record(processes.boot_id()),
            nodes=lease.nodes,
            files=lease.files,
        )
        self.database.put("lease", reservation_id, record)
        self.flush()

    def change_files(self, request: files_pb2.ChangeFilesRequest) -> files_pb2.ReservationFiles:
        """Do what a client says of a reservation's files, and tell all that are attached."""
        files = self.state.lease(request.reservation_id).change_files(request)
        self.save_lease(request.reservation_id)
        for session in self.sessions:
            if request.reservation_id in session.attached:
                session.send(files_changed=pb.FilesChanged(reservation_id=request.reservation_id, files=files))
        return files

    async def release(self, reservation_id: str, why: str = "") -> int:
        """End everything of a reservation and give its slots back; return how many ranks ended.

        Args:
            why: when no person asked for it.
        """
        return await asyncio.shield(self.start_release(reservation_id, why))

    def start_release(self, reservation_id: str, why: str = "") -> asyncio.Task[int]:
        """Begin to release, unless that is going on."""
        if reservation_id not in self.releases:
            if why and reservation_id in self.state.leases:
                self._remember_end(self.expiry.end(reservation_id, why))
            task = self.releases[reservation_id] = self._loop.create_task(self._release(reservation_id))
            task.add_done_callback(lambda _: self.releases.pop(reservation_id))
        return self.releases[reservation_id]

    def _remember_end(self, ended: pb.Ended) -> None:
        self.database.put("ended", ended.reservation_id, ended)
        for key, _ in list(self.database.read("ended", pb.Ended)):
            if key not in self.state.ended:
                self.database.delete("ended", key)
        self.flush()

    async def _release(self, reservation_id: str) -> int:
        self.expiry.forget(reservation_id)
        meshes = [m for m, record in self.mesh_records.items() if record.spec.reservation_id == reservation_id]
        ranks = [rank for rank in self.supervisor.ranks.values() if rank.home_id in meshes]
        replaced = [rank for rank in self.supervisor.leaving if rank.home_id in meshes]
        for mesh_id in meshes:
            self._close_mesh(mesh_id)  # first, so that ranks which are being started find that it is gone
        await self.supervisor.end([*ranks, *replaced], patience_s=1.0)
        self.forget_ranks(ranks)
        for mesh_id in meshes:
            await self.remove_mesh(mesh_id)
        if lease := self.state.leases.get(reservation_id):
            await self.files.release(reservation_id, lease.request.name)
        self.state.release(reservation_id)
        self.database.delete("lease", reservation_id)
        self.flush()
        return sum(not rank.record.script_of for rank in ranks)

    def _close_mesh(self, mesh_id: str) -> None:
        """From now on the mesh is not known; whoever waits for a run of it is told."""
        if mesh := self.state.meshes.pop(mesh_id, None):
            ended = self.state.ended.get(mesh.spec.reservation_id)
            gone = error_to_json(expired(ended) if ended else MeshNotFound(RELEASED))
            for run in mesh.runs.values():
                self.audience.dismiss(run, gone)
        self._dirty_runs = {key for key in self._dirty_runs if key[0] != mesh_id}
        self._newest_runs.pop(mesh_id, None)

    async def remove_mesh(self, mesh_id: str) -> None:
        """End a mesh's store, and forget the mesh, whose ranks have ended."""
        await self.supervisor.end_store(mesh_id)
        self.mesh_records.pop(mesh_id, None)
        self._numbers.forget(mesh_id)
        self.database.delete("mesh", mesh_id)
        self.database.delete_prefix("rank", mesh_id)
        self.database.delete_prefix("leaving", mesh_id)
        self.database.delete_prefix("run", mesh_id)
        self.files.removal.remove(self.paths.mesh(mesh_id))

    # ---- meshes ----

    def save_mesh(self, record: state_pb2.MeshRecord) -> None:
        """Know a mesh, of which this node has ranks or the store."""
        self.mesh_records[record.spec.mesh_id] = record
        self.database.put("mesh", record.spec.mesh_id, record)
        self.flush_soon()

    def check_held(self, reservation_id: str) -> None:
        """Raise ReservationNotFound when a reservation is not held, or about to be so no longer."""
        self.state.lease(reservation_id)
        if reservation_id in self.releases:
            raise ReservationNotFound("the reservation was released while its ranks were being started")

    async def spawn(self, spec: pb.SpawnRequest) -> list[pb.Rank]:
        """Fork the mesh's ranks on this node and wait until they are ready."""
        self.check_held(spec.reservation_id)
        mesh = self.state.add_mesh(spec)
        try:
            for directory in (self.paths.runs(spec.mesh_id), self.paths.blobs(spec.mesh_id)):
                directory.mkdir(parents=True, exist_ok=True)
            record = self.mesh_records.get(spec.mesh_id) or state_pb2.MeshRecord()
            record.spec.CopyFrom(spec)
            self.save_mesh(record)
            self._numbers.note(spec.mesh_id, 0)
            with self.expiry.held_up(spec.reservation_id):
                await self.fork_ranks(mesh, sorted(mesh.ranks), dict.fromkeys(mesh.ranks, 0))
        except BaseException:
            self._close_mesh(spec.mesh_id)
            await self.remove_mesh(spec.mesh_id)
            raise
        return describe_ranks(self, mesh, mesh.ranks)

    def rank_directory(self, reservation_id: str, rank: int) -> str:
        """Return where a rank of a reservation's main mesh started."""
        self.state.lease(reservation_id)
        for mesh in self.state.meshes.values():
            spec = mesh.spec
            if (spec.reservation_id, spec.name) == (reservation_id, "main") and rank in mesh.ranks:
                workspace = self.files.workspaces.directory(reservation_id) if spec.in_workspace else None
                return str(start_directory(spec, workspace))
        raise MeshNotFound(f"{self.node_id} has no rank {rank} of that reservation")

    async def fork_ranks(self, mesh: Mesh, ranks: list[int], incarnations: dict[int, int]) -> None:
        """Fork a mesh's live ranks; `incarnations` says how often each was restarted."""

        def plan(workspace: Path | None) -> list[Plan]:
            return [plan_rank(self.paths, mesh, rank, incarnations[rank], workspace) for rank in ranks]

        for process in await self.fork(mesh, plan):
            self.apply(self.state.rank_ready(mesh.spec.mesh_id, process.rank))

    async def fork(self, mesh: Mesh, plan: Callable[[Path | None], list[Plan]]) -> list[RankProcess]:
        """Fork processes on a mesh's slots, and write them down.

        Args:
            plan: told the node's copy of the notebook's files, if it has one, returns what they are to be.
        """
        spec = mesh.spec
        self.check_held(spec.reservation_id)  # else a workspace would be made that nobody removes
        workspace = self.files.workspaces.directory(spec.reservation_id) if spec.in_workspace else None
        if workspace is not None:
            start_directory(spec, workspace).mkdir(parents=True, exist_ok=True)
        template = await self.supervisor.template(spec.python or self.python, spec.preload)
        self.check_held(spec.reservation_id)
        forked = await self.supervisor.fork_ranks(template, plan(workspace))
        try:
            self.check_held(spec.reservation_id)
        except ReservationNotFound:
            await self.supervisor.end(forked)
            raise
        for process in forked:
            self._save_rank(process.record)
        self.flush()
        return forked

    def forget_ranks(self, ranks: Iterable[RankProcess]) -> None:
        """Nobody needs to know of these processes any more."""
        for process in ranks:
            self.database.delete("rank", rank_key(process.mesh_id, process.rank))
        self.flush_soon()

    def _save_run(self, mesh_id: str, run: Run) -> None:
        """Write a run down, unless its client has everything: then nobody will ask for it again. The newest is kept all
        the same: the next one says that it comes after it."""
        key = run_key(mesh_id, run.run_id)
        if run.finished and run.collected and self._newest_runs.get(mesh_id) != run.run_id:
            self.database.delete("run", key)
        else:
            self.database.put("run", key, run.record())

    def _save_rank(self, record: state_pb2.RankRecord) -> None:
        self.database.put("rank", rank_key(record.mesh_id, record.rank), record)

    def _save_template(self, key: str, record: state_pb2.TemplateRecord | None) -> None:
        if record is None:
            self.database.delete("template", key)
            self.flush_soon()
        else:
            self.database.put("template", key, record)
            self.flush()  # at once: whoever is killed before leaves a process to nobody

    # ---- runs ----

    def submit(self, session: Session, submit: pb.Submit) -> None:
        """Queue a run for a session that follows it; the same run id again only follows it."""
        mesh = self.state.mesh(submit.mesh_id)
        known = submit.run.run_id in mesh.runs
        # Else the allocator before this one had started it, and there is output.
        is_new = not known and not submit.run.output and not mesh.is_running(submit.run.run_id)
        queued, effects = self.state.submit(submit, time.time())
        run = mesh.runs[submit.run.run_id]
        self.expiry.used(mesh.spec.reservation_id)
        if not known:
            self._numbers.note(submit.mesh_id, mesh.last_number)
            self.audience.prepare_output(mesh, run)
        others_wait = submit.give_number and len(submit.all_ranks) > len(submit.ranks)
        session.send(urgent=others_wait or bool(queued.ahead), queued=queued)
        if not submit.quiet:
            # Before it starts: then there is nothing to read.
            self.audience.follow(session, mesh, run, dict(submit.cursors), is_new=is_new)
        self.apply(effects)
        if known:
            self.audience.send_results(session, run)
        else:
            older = self._newest_runs.get(submit.mesh_id, run.run_id)
            self._newest_runs[submit.mesh_id] = run.run_id
            self._dirty_runs |= {(submit.mesh_id, older), (submit.mesh_id, run.run_id)}
            self.flush_soon()

    def follow(self, session: Session, request: pb.Follow) -> None:
        """Send a run's output from the given cursors, and the results it has."""
        mesh = self.state.mesh(request.mesh_id)
        run = mesh.runs.get(request.run_id)
        if run is None:
            raise RunNotFound("the run is not known here any more: `%mesh logs` has its output")
        cursors = self.audience.shown(run.run_id) if request.from_shown else dict(request.cursors)
        session.send(queued=self.state.queued(mesh, run))
        self.audience.follow(session, mesh, run, cursors)
        self.audience.send_results(session, run)

    def collected(self, run_ids: Iterable[str]) -> None:
        """The client has the results of runs: their values need not be kept."""
        for run_id in run_ids:
            self._drop_values(run_id)
            self.stores.forget(run_id)

    def _drop_values(self, run_id: str) -> None:
        if mesh_id := self.state.collected(run_id):
            run = self.state.meshes[mesh_id].runs[run_id]
            if run.finished and run.submit.run.HasField("push"):  # the ranks have mapped it
                self.blob_path(mesh_id, run.submit.run.push.blob).unlink(missing_ok=True)
            for result in run.results.values():
                if result.HasField("value_blob"):
                    self.blob_path(mesh_id, result.value_blob).unlink(missing_ok=True)
                result.ClearField("value")
                if len(result.bundle_json) > KEPT_BUNDLE_BYTES:
                    result.ClearField("bundle_json")
            self._dirty_runs.add((mesh_id, run_id))
            self.flush_soon()

    def shown(self, request: pb.Shown) -> None:
        """Remember what the client has shown."""
        self.audience.note_shown(request)

    def apply(self, effects: list[Effect]) -> None:
        """Carry out what the state decided."""
        encoded: dict[str, bytes] = {}
        scripts: dict[tuple[str, str], list[int]] = {}
        for effect in effects:
            if isinstance(effect, StartRun):
                run_id = effect.run.run_id
                if self.state.begun(effect.mesh_id, run_id, time.time()):
                    self.audience.begun(run_id)
                if effect.run.HasField("script"):
                    scripts.setdefault((effect.mesh_id, run_id), []).append(effect.rank)
                    continue
                if run_id not in encoded:
                    encoded[run_id] = wire.ToRank(run=effect.run).SerializeToString()
                if process := self.supervisor.ranks.get((effect.mesh_id, effect.rank)):
                    process.link.start(encoded[run_id])
                self._dirty_runs.add((effect.mesh_id, run_id))
            elif isinstance(effect, RankFinished):
                self._finish(effect)
            elif isinstance(effect, RunDropped):
                self._drop(effect)
        for (mesh_id, run_id), ranks in scripts.items():
            self.scripts.start(mesh_id, run_id, ranks)

    def _finish(self, effect: RankFinished) -> None:
        mesh = self.state.meshes[effect.mesh_id]
        run = mesh.runs[effect.run_id]
        self.expiry.used(mesh.spec.reservation_id)
        self._dirty_runs.add((effect.mesh_id, effect.run_id))
        if run.output != run.number and not effect.result.untouched:
            RankFiles(self.paths.runs(effect.mesh_id), run.output, effect.result.rank).note_run(run.number)
        self.audience.rank_finished(run, effect.result)
        self.flush_soon()

    def _drop(self, effect: RunDropped) -> None:
        self.database.delete("run", run_key(effect.mesh_id, effect.run_id))
        self._dirty_runs.discard((effect.mesh_id, effect.run_id))
        self.audience.forget(effect.run_id)
        if not effect.output:
            return
        directory = self.paths.runs(effect.mesh_id) / str(effect.output)
        try:
            if not any(entry.stat().st_size for entry in os.scandir(directory)):
                shutil.rmtree(directory, ignore_errors=True)  # it printed nothing: no log is lost
        except FileNotFoundError:
            pass

    def _on_result(self, process: RankProcess, result: run_pb2.RankResult) -> None:
        if process.record.script_of:
            self.scripts.on_result(process, result)
            return
        mesh_id = process.mesh_id
        mesh = self.state.meshes.get(mesh_id)
        if mesh and result.run_id in mesh.runs:  # else its client will submit it again, and then the rank has it still
            self._unacknowledged.setdefault((mesh_id, result.rank), []).append(result.run_id)
        self.apply(self.state.result(mesh_id, result))
        self.flush_soon()

    def _on_hello(self, process: RankProcess, hello: wire.RankHello) -> None:
        if process.record.script_of:
            self.scripts.on_hello(process, hello)
        elif process.mesh_id in self.state.meshes:  # else it is being released
            for result in hello.results:
                self._on_result(process, result)
            self.apply(self.state.rank_adopted(process.mesh_id, process.rank, hello.running, hello.done))

    def _on_death(self, process: RankProcess, status: int | None) -> None:
        if process.record.script_of:
            self.scripts.on_death(process, status)
            return
        mesh = self.state.meshes.get(process.mesh_id)
        if mesh is None:
            return
        running = mesh.ranks[process.rank].running
        runs = self.paths.runs(process.mesh_id)
        others = {run.output for run in mesh.runs.values() if run.is_script}
        newest = max((output for output in stored_outputs(runs) if output not in others), default=0)
        output = mesh.runs[running].output if running in mesh.runs else newest
        death = self.explain_death(process, status, RankFiles(runs, output, process.rank))
        process.record.death.CopyFrom(death)
        self._save_rank(process.record)
        self.apply(self.state.rank_died(process.mesh_id, process.rank, death))
        for session in self.sessions:
            session.send(rank_died=pb.RankDied(mesh_id=process.mesh_id, rank=process.rank, death=death))
        self.flush_soon()

    def explain_death(self, process: RankProcess, status: int | None, files: RankFiles) -> run_pb2.Death:
        """Say how a process ended, and what it said last in the files of its run."""
        stderr, stacks = files.tail_lines("err"), self.supervisor.stacks(process)
        return processes.explain_death(
            process.record.process.pid,
            status,
            killed_by_us=process.killed_by_us,
            oom_kills_before=process.oom_kills_before,
            stderr_tail=processes.last_words(stderr, stacks, STDERR_TAIL_LINES),
        )

    def blob_path(self, mesh_id: str, blob: str) -> Path:
        """Return a blob's path; its name must be one plain file name."""
        self.state.mesh(mesh_id)
        if not blob or blob != Path(blob).name or blob.startswith("."):
            raise UsageError(f"bad blob name {blob!r}")
        return self.paths.blobs(mesh_id) / blob

    # ---- the database ----

    def flush_soon(self) -> None:
        """Write down what has changed, with what changes in the next moments."""
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_DELAY_S, self.flush)

    def flush(self) -> None:
        """Write down what has changed."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        for mesh_id, run_id in self._dirty_runs:
            if run := self.state.meshes[mesh_id].runs.get(run_id):
                self._save_run(mesh_id, run)
        self._dirty_runs.clear()
        try:
            self.database.flush()
        except sqlite3.Error as error:  # a full disk: ranks keep their results until it can be written
            _log.warning("state can not be written: %s", error)
            return
        for (mesh_id, rank), run_ids in self._unacknowledged.items():
            if process := self.supervisor.ranks.get((mesh_id, rank)):
                process.link.forget_results(run_ids)
        self._unacknowledged.clear()
