"""What an allocator knows and decides: leases, meshes, ranks and the order of runs. Pure: no I/O, no clock.

Each method is a stimulus. It changes the state, or raises without changing it, and returns what is to be done as a list
of effects, which the node carries out (monarch_nb.allocator.node).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from monarch_nb.allocator.limits import Limits, expired
from monarch_nb.code_names import run_name
from monarch_nb.config import RESTARTED
from monarch_nb.errors import (
    CapacityError,
    MeshNotFound,
    ReservationConflict,
    ReservationNotFound,
    UsageError,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2, state_pb2
from monarch_nb.shape import name_ranks

MAX_FINISHED_RUNS = 200
MAX_ENDED = 50
MAX_DROPPED_EARLY = 200
MAX_MESSAGE_CHARACTERS = 300
"""Of what a run raised, as status tells it."""


@dataclass(frozen=True)
class StartRun:
    """Send the run to the rank, which is free."""

    mesh_id: str
    rank: int
    run: run_pb2.RunSpec


@dataclass(frozen=True)
class RankFinished:
    """A rank finished a run (or never will run it)."""

    mesh_id: str
    run_id: str
    result: run_pb2.RankResult


@dataclass(frozen=True)
class RunDropped:
    """A finished run is old and forgotten; `output` may be removed, 0 when a newer run has it."""

    mesh_id: str
    run_id: str
    output: int


Effect = StartRun | RankFinished | RunDropped


class Run:
    """One run's part on this node.

    Attributes:
        run_id, number, ranks: of `submit`, as plain values because they are looked at all the time.
        output: the directory of its output (RunSpec.output).
        previous: what its client was told (Queued.previous).
    """

    def __init__(self, submit: pb.Submit, submitted_at: float) -> None:
        self.submit, self.submitted_at = submit, submitted_at
        self.run_id, self.number, self.ranks = submit.run.run_id, submit.run.number, tuple(submit.ranks)
        self.output = submit.run.output or self.number
        self.previous: dict[int, int] = {}
        self.results: dict[int, run_pb2.RankResult] = {}
        self.started: set[int] = set()
        self.started_at = 0.0
        self.collected = False
        self.is_told_to_wait = False
        """Clients were told what it waits for, and not yet that it waits no more."""

    @property
    def finished(self) -> bool:
        return len(self.results) == len(self.ranks)

    @property
    def waits(self) -> bool:
        """Whether it has yet to begin on some rank."""
        return any(rank not in self.started and rank not in self.results for rank in self.ranks)

    def record(self) -> state_pb2.RunRecord:
        return state_pb2.RunRecord(
            submit=self.submit,
            results=list(self.results.values()),
            collected=self.collected,
            submitted_at=self.submitted_at,
            started=sorted(self.started),
            started_at=self.started_at,
        )

    @classmethod
    def from_record(cls, record: state_pb2.RunRecord) -> Run:
        run = cls(record.submit, record.submitted_at)
        run.results = {result.rank: result for result in record.results}
        run.started, run.collected = set(record.started), record.collected
        run.started_at = record.started_at
        return run


@dataclass
class RankSlot:
    """One rank of a mesh on this node. `death` is None while it lives; `running` is a run's id."""

    gpu_indices: list[int] = field(default_factory=list)
    death: run_pb2.Death | None = None
    ready: bool = False
    running: str = ""
    untouched: int = 0
    """The output that the last run on this rank left untouched, 0 if it did not."""
    failure: run_pb2.Failure | None = None
    """What the newest run that this process finished has raised."""


@dataclass
class Mesh:
    spec: pb.SpawnRequest
    ranks: dict[int, RankSlot] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    last_number: int = 0
    previous: dict[int, int] = field(default_factory=dict)
    forgotten: int = 0
    """The newest number among the runs that were forgotten."""

    queue: list[Run] = field(default_factory=list)
    """Unfinished runs in the order in which ranks get them."""

    numbers: set[int] = field(default_factory=set)
    """Of the known runs."""

    dropped_early: dict[str, None] = field(default_factory=dict)
    """Ids of runs that were dropped before they came, oldest first."""

    def ranks_writing(self, run: Run) -> list[int]:
        """Return the ranks on which the output of a run is its own: a newer run may have what it left untouched."""
        newer = [other for other in self.runs.values() if other.output == run.output and other.number > run.number]
        return [rank for rank in run.ranks if not any(rank in other.ranks for other in newer)]

    def is_running(self, run_id: str) -> bool:
        return any(slot.running == run_id for slot in self.ranks.values())

    def add_run(self, run: Run) -> None:
        self.runs[run.run_id] = run
        self.numbers.add(run.number)
        if not run.finished:
            self.queue.append(run)
            self.queue.sort(key=lambda queued: queued.number)

    def drop_early(self, run_id: str) -> None:
        """Drop a run when it comes, if it does."""
        self.dropped_early[run_id] = None
        if len(self.dropped_early) > MAX_DROPPED_EARLY:
            del self.dropped_early[next(iter(self.dropped_early))]


@dataclass
class Lease:
    """A reservation's part of this node. `nodes` are all of the reservation, by node rank, when it is confirmed."""

    request: pb.ReserveRequest
    gpu_indices: list[int]
    confirmed: bool = False
    limits: Limits = field(default_factory=Limits)
    nodes: list[files_pb2.Peer] = field(default_factory=list)
    files: files_pb2.ReservationFiles = field(default_factory=files_pb2.ReservationFiles)

    def change_files(self, change: files_pb2.ChangeFilesRequest) -> files_pb2.ReservationFiles:
        """Do what a client says of the reservation's files."""
        files = self.files
        added = [tree for tree in files.added if tree.name not in (change.add.name, change.remove)]
        if change.HasField("add"):
            added.append(change.add)
        reload = change.reload if change.HasField("reload") else files.reload if files.HasField("reload") else None
        self.files = files_pb2.ReservationFiles(
            added=added, reload=reload, revision=files.revision + 1, changed_by=change.client
        )
        return self.files


class NodeState:
    """Everything an allocator must not forget.

    Args:
        procs: CPU slots of the node.
        gpus: indices of its GPUs.
    """

    def __init__(self, procs: int, gpus: Iterable[int] = ()) -> None:
        self.procs = procs
        self.gpus = list(gpus)
        self.gpu_troubles: dict[int, str] = {}
        """Why GPUs can not be used: they are not leased."""
        self.leases: dict[str, Lease] = {}
        self.meshes: dict[str, Mesh] = {}
        self.ended: dict[str, pb.Ended] = {}
        """Reservations that no person released, by id, oldest first."""

    # ---- leases ----

    @property
    def procs_free(self) -> int:
        return self.procs - sum(lease.request.procs for lease in self.leases.values())

    @property
    def gpus_free(self) -> list[int]:
        taken = {index for lease in self.leases.values() for index in lease.gpu_indices}
        return [index for index in self.gpus if index not in taken and index not in self.gpu_troubles]

    def reserve(self, request: pb.ReserveRequest) -> Lease:
        """Lease slots; asking again for the same reservation returns its lease.

        Raises:
            UsageError: neither procs nor gpus, or both.
            ReservationConflict: the owner's name is taken by another reservation.
            CapacityError: not enough is free; the message says who holds the rest.
        """
        if lease := self.leases.get(request.reservation_id):
            return lease
        if bool(request.procs) == bool(request.gpus):
            raise UsageError("ask for --procs N (CPU ranks) or --gpus N, per node, not both")
        for lease in self.leases.values():
            if (lease.request.name, lease.request.owner) == (request.name, request.owner):
                raise ReservationConflict(f"the name {request.name!r} is already held; release it or choose another")
        if request.procs > self.procs_free:
            raise CapacityError(self._shortage(request.procs, self.procs_free, self.procs, "procs"))
        if request.gpus > len(self.gpus_free):
            raise CapacityError(self._shortage(request.gpus, len(self.gpus_free), len(self.gpus), "gpus"))
        limits = Limits(request.time_s, request.idle_s)
        lease = Lease(request, self.gpus_free[: request.gpus], limits=limits)
        self.leases[request.reservation_id] = lease
        return lease

    def _shortage(self, wanted: int, free: int, total: int, kind: str) -> str:
        if not total:
            return f"this node has no {kind.upper().rstrip('S')}s"
        held = [
            f"{lease.request.name} ({lease.request.owner}) holds {count}"
            for lease in self.leases.values()
            if (count := getattr(lease.request, kind))
        ]
        reasons = [", ".join(held), *(self.gpu_troubles.values() if kind == "gpus" else ())]
        return "; ".join(filter(None, [f"{wanted} {kind} per node asked for, {free} of {total} free", *reasons]))

    def confirm(self, reservation_id: str, nodes: Iterable[files_pb2.Peer] = (), now_s: float = 0.0) -> None:
        """Keep a provisional lease; its limits count from now on."""
        lease = self.lease(reservation_id)
        lease.confirmed, lease.nodes = True, list(nodes)
        lease.limits.confirm(now_s)

    def lease(self, reservation_id: str) -> Lease:
        """Return a lease, or raise ReservationNotFound (ReservationExpired when no person released it)."""
        if lease := self.leases.get(reservation_id):
            return lease
        if ended := self.ended.get(reservation_id):
            raise expired(ended)
        raise ReservationNotFound("the reservation is not held here (released, or never confirmed); reserve again")

    def release(self, reservation_id: str) -> list[str]:
        """Give a lease back; return the ids of its meshes, which are gone from the state."""
        self.leases.pop(reservation_id, None)
        gone = [mesh_id for mesh_id, mesh in self.meshes.items() if mesh.spec.reservation_id == reservation_id]
        for mesh_id in gone:
            del self.meshes[mesh_id]
        return gone

    def is_running(self, reservation_id: str) -> bool:
        """Whether a cell runs on a rank of a reservation."""
        return any(
            slot.running
            for mesh in self.meshes.values()
            if mesh.spec.reservation_id == reservation_id
            for slot in mesh.ranks.values()
        )

    def end(self, reservation_id: str, why: str, now: float) -> pb.Ended:
        """Remember that a reservation is about to end by itself, and why. The oldest such memories go."""
        request = self.leases[reservation_id].request
        ended = self.ended[reservation_id] = pb.Ended(
            reservation_id=reservation_id,
            name=request.name,
            owner=request.owner,
            ended_at=now,
            why=why,
            mesh_ids=[mesh.spec.mesh_id for mesh in self.meshes.values() if mesh.spec.reservation_id == reservation_id],
        )
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
        return ended

    # ---- meshes ----

    def mesh(self, mesh_id: str) -> Mesh:
        """Return a mesh, or raise MeshNotFound (ReservationExpired when its reservation ended by itself)."""
        if mesh := self.meshes.get(mesh_id):
            return mesh
        for ended in self.ended.values():
            if mesh_id in ended.mesh_ids:
                raise expired(ended)
        raise MeshNotFound("the mesh does not exist here any more (released?); reserve again")

    def add_mesh(self, spec: pb.SpawnRequest) -> Mesh:
        """Add a mesh to a lease; its ranks become ready one by one.

        Raises:
            ReservationNotFound: no such lease.
            CapacityError: more ranks than slots.
        """
        lease = self.lease(spec.reservation_id)
        slots = lease.request.gpus or lease.request.procs
        if spec.ranks > slots:
            raise CapacityError(f"{spec.ranks} ranks do not fit in {slots} slots of {lease.request.name}")
        mesh = self.meshes[spec.mesh_id] = Mesh(spec)
        for local_rank in range(spec.ranks):
            gpus = [lease.gpu_indices[local_rank]] if lease.gpu_indices else []
            mesh.ranks[spec.first_rank + local_rank] = RankSlot(gpus)
        return mesh

    # ---- runs ----

    def submit(self, submit: pb.Submit, now: float) -> tuple[pb.Queued, list[Effect]]:
        """Queue a run; the same run id again changes nothing. One that has a number keeps it: the allocator before this
        one had no time to write it down.

        Returns:
            What the client needs to submit it to the other nodes, and the effects.

        Raises:
            MeshNotFound: no such mesh.
            UsageError: a rank that is not on this node.
        """
        mesh = self.mesh(submit.mesh_id)
        run_id = submit.run.run_id
        if known := mesh.runs.get(run_id):
            return self.queued(mesh, known), []
        if unknown := [rank for rank in submit.ranks if rank not in mesh.ranks]:
            raise UsageError(f"{name_ranks(unknown)} not on this node")
        previous: dict[int, int] = {}
        if submit.give_number and not submit.run.number:
            submit.run.number = mesh.last_number + 1
            previous = dict(mesh.previous)
            per_node = max(1, mesh.spec.ranks)
            mesh.previous.update({rank // per_node: submit.run.number for rank in submit.all_ranks})
        mesh.last_number = max(mesh.last_number, submit.run.number)
        if not submit.run.output:
            submit.run.output = self._choose_output(mesh, submit)
        run = Run(submit, now)
        run.previous = previous
        run.started.update(rank for rank in run.ranks if mesh.ranks[rank].running == run_id)
        queued = self.queued(mesh, run)
        mesh.add_run(run)
        dropped = self._drop(mesh, run) if run_id in mesh.dropped_early else []
        return queued, [*dropped, *self._bury(mesh), *self._advance(mesh), *self._trim(mesh)]

    def _choose_output(self, mesh: Mesh, submit: pb.Submit) -> int:
        """Return an output that the last runs on all these ranks left untouched, else a new one."""
        untouched = {mesh.ranks[rank].untouched for rank in submit.ranks}
        for rank in submit.ranks:
            mesh.ranks[rank].untouched = 0
        return untouched.pop() or submit.run.number if len(untouched) == 1 else submit.run.number

    def queued(self, mesh: Mesh, run: Run) -> pb.Queued:
        """Return what a client is told of a run; other notebooks are named, because they number their cells alike."""
        wanted = {rank for rank in run.ranks if rank not in run.started}
        ahead = [
            run_name(
                other.number,
                other.submit.run.cell.cell_number,
                other.submit.title,
                os.path.basename(other.submit.notebook) if other.submit.notebook != run.submit.notebook else "",
            )
            for other in (mesh.queue if run.waits else ())
            if other.number < run.number and wanted & (set(other.ranks) - other.results.keys())
        ]
        run.is_told_to_wait = bool(ahead)
        return pb.Queued(run_id=run.run_id, number=run.number, output=run.output, previous=run.previous, ahead=ahead)

    def begun(self, mesh_id: str, run_id: str, now: float) -> bool:
        """A run begins on a rank. Return whether clients are to be told that it waits no more."""
        run = self.meshes[mesh_id].runs[run_id]
        run.started_at = run.started_at or now
        if run.waits or not run.is_told_to_wait:
            return False
        run.is_told_to_wait = False
        return True

    def proceed(self, mesh_id: str, run_id: str) -> list[Effect]:
        """Let a run, and those before it, begin although a run before them never arrived (its client died half-way)."""
        mesh = self.mesh(mesh_id)
        if run := mesh.runs.get(run_id):
            for queued in mesh.queue:
                if queued.number <= run.number:
                    queued.submit.after = 0
        return self._advance(mesh)

    def result(self, mesh_id: str, result: run_pb2.RankResult) -> list[Effect]:
        """A rank finished a run."""
        mesh = self.meshes.get(mesh_id)
        slot = mesh.ranks.get(result.rank) if mesh else None
        if mesh is None or slot is None:
            return []
        slot.failure = _failure_of(result)
        if slot.running == result.run_id:
            slot.running = ""
        run = mesh.runs.get(result.run_id)
        if run is None or result.rank in run.results or result.rank not in run.ranks:
            return self._advance(mesh)
        is_last = not any(result.rank in queued.ranks for queued in mesh.queue if queued is not run)
        slot.untouched = run.output if result.untouched and is_last else 0
        return [*self._finish(mesh, run, result), *([] if is_last else self._advance(mesh))]

    def rank_ready(self, mesh_id: str, rank: int) -> list[Effect]:
        """A rank's process is up (again) and waits for runs."""
        mesh = self.mesh(mesh_id)
        slot = mesh.ranks[rank]
        slot.ready, slot.death, slot.running, slot.untouched, slot.failure = True, None, "", 0, None
        return self._advance(mesh)

    def rank_adopted(self, mesh_id: str, rank: int, running: str, done: Sequence[str]) -> list[Effect]:
        """A living rank was connected to again, most often by a restarted allocator; its kept results are given to
        `result` before this.

        Args:
            running: the run that goes on there. done: those that it has finished, oldest first.
        """
        mesh = self.mesh(mesh_id)
        slot = mesh.ranks[rank]
        slot.ready, slot.running = True, running
        newest = mesh.runs.get(done[-1]) if done else None
        if newest and rank in newest.results:
            slot.failure = _failure_of(newest.results[rank])
        for run in mesh.runs.values():
            if rank in run.ranks and run.run_id == running:
                run.started.add(rank)
            elif rank in run.started and rank not in run.results and run.run_id not in done:
                run.started.discard(rank)
        return self._advance(mesh)

    def rank_died(self, mesh_id: str, rank: int, death: run_pb2.Death) -> list[Effect]:
        """A rank's process ended: so do its runs, running and queued."""
        mesh = self.meshes.get(mesh_id)
        if mesh is None or rank not in mesh.ranks:
            return []
        slot = mesh.ranks[rank]
        slot.death, slot.ready, slot.running = death, False, ""
        return [*self._bury(mesh), *self._advance(mesh)]

    def rank_restarting(self, mesh_id: str, rank: int) -> list[Effect]:
        """A rank is about to be replaced: what it runs or has queued ends."""
        effects = self.rank_died(mesh_id, rank, run_pb2.Death(likely_cause=RESTARTED))
        self.mesh(mesh_id).ranks[rank].death = None
        return effects

    def cancel(self, run_id: str) -> list[Effect]:
        """Drop a run on ranks where it has not begun."""
        effects: list[Effect] = []
        for mesh in self.meshes.values():
            if run := mesh.runs.get(run_id):
                effects += [*self._drop(mesh, run), *self._advance(mesh)]
        return effects

    def drop(self, mesh_id: str, run_ids: Sequence[str]) -> tuple[list[str], list[Effect]]:
        """Drop runs on ranks where they have not begun, also those that have not reached this node yet.

        Returns:
            Which of them have begun on some rank here, and the effects.
        """
        mesh = self.mesh(mesh_id)
        effects: list[Effect] = []
        begun = []
        for run_id in run_ids:
            run = mesh.runs.get(run_id)
            if run is None:
                mesh.drop_early(run_id)
                continue
            effects += self._drop(mesh, run)
            if run.started:
                begun.append(run_id)
        return begun, [*effects, *self._advance(mesh)]  # only now: none of them begins because another is gone

    def _drop(self, mesh: Mesh, run: Run) -> list[Effect]:
        effects: list[Effect] = []
        for rank in run.ranks:
            if rank not in run.started and rank not in run.results:
                dropped = run_pb2.RankResult(run_id=run.run_id, rank=rank, outcome=run_pb2.OUTCOME_CANCELLED)
                effects += self._finish(mesh, run, dropped)
        return effects

    def collected(self, run_id: str) -> str:
        """The client has the results. Returns the mesh's id, empty when the run is unknown."""
        for mesh_id, mesh in self.meshes.items():
            if run := mesh.runs.get(run_id):
                run.collected = True
                return mesh_id
        return ""

    def _finish(self, mesh: Mesh, run: Run, result: run_pb2.RankResult) -> list[Effect]:
        run.results[result.rank] = result
        if run.finished:
            mesh.queue.remove(run)
        return [RankFinished(mesh.spec.mesh_id, run.run_id, result)]

    def _bury(self, mesh: Mesh) -> list[Effect]:
        """End what dead ranks were to run."""
        dead = {rank: slot.death for rank, slot in mesh.ranks.items() if slot.death is not None}
        effects: list[Effect] = []
        if dead:
            for run in list(mesh.queue):
                for rank in run.ranks:
                    if rank in dead and rank not in run.results:
                        outcome = run_pb2.OUTCOME_DIED
                        result = run_pb2.RankResult(run_id=run.run_id, rank=rank, outcome=outcome, death=dead[rank])
                        effects += self._finish(mesh, run, result)
        return effects

    def _advance(self, mesh: Mesh) -> list[Effect]:
        """Give every free rank the oldest run that waits for it. A rank is never given a run before an older one."""
        effects: list[Effect] = []
        blocked: set[int] = set()
        waits = False
        for run in mesh.queue:
            waits = waits or self._gap(mesh, run)  # what is missing comes before every newer run, on ranks unknown
            for rank in run.ranks:
                if rank in run.results or rank in blocked:
                    continue
                slot = mesh.ranks[rank]
                if not waits and slot.ready and not slot.running and rank not in run.started:
                    run.started.add(rank)
                    slot.running = run.run_id
                    effects.append(StartRun(mesh.spec.mesh_id, rank, run.submit.run))
                blocked.add(rank)
        return effects

    @staticmethod
    def _gap(mesh: Mesh, run: Run) -> bool:
        """True when a run that must come first has not reached this node."""
        after = run.submit.after
        return after > mesh.forgotten and after not in mesh.numbers

    def _trim(self, mesh: Mesh) -> list[Effect]:
        """Forget the oldest finished runs that a client has collected, and any beyond twice that number."""
        excess = len(mesh.runs) - len(mesh.queue) - MAX_FINISHED_RUNS
        effects: list[Effect] = []
        for run in list(islice((run for run in mesh.runs.values() if run.finished), max(0, excess))):
            if run.collected or excess > MAX_FINISHED_RUNS:
                del mesh.runs[run.run_id]
                mesh.numbers.discard(run.number)
                mesh.forgotten = max(mesh.forgotten, run.number)
                shared = any(other.output == run.output for other in mesh.runs.values())
                effects.append(RunDropped(mesh.spec.mesh_id, run.run_id, 0 if shared else run.output))
        return effects


def _failure_of(result: run_pb2.RankResult) -> run_pb2.Failure | None:
    """Return what user code raised, in short."""
    if result.outcome != run_pb2.OUTCOME_ERROR:
        return None
    failure = result.failure
    return run_pb2.Failure(name=failure.name, message=failure.message[:MAX_MESSAGE_CHARACTERS], where=failure.where)
