"""What an allocator knows and decides: leases, meshes, ranks and the order of runs. Pure: no I/O, no clock.

Each method is a stimulus. It changes the state, or raises without changing it, and returns what is to be done as a list
of effects, which the node carries out (monarch_nb.allocator.runs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monarch_nb import config
from monarch_nb.allocator.state.lease import Limits, released, why_not_free
from monarch_nb.allocator.state.runs import Effect, Mesh, RankSlot, Run, failure_of, name_of
from monarch_nb.errors import (
    ATTACH_USES_IT,
    CapacityError,
    MeshNotFound,
    ReservationConflict,
    ReservationNotFound,
    UsageError,
)
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.shape import reserve_flags


@dataclass(frozen=True)
class Identity:
    """One node, as clients are told of it.

    Attributes:
        node_id: "node0"; unique in the pool.
        address: where other nodes, and clients on other machines, reach it.
        gpus: those that it offers.
        python: the ranks', unless a mesh names another.
        store_host: address of the interface on which stores and collectives listen.
        interface: name of that interface.
        isolated: it sees no files of clients, even when they are on this machine.
        token: another one after every start.
    """

    node_id: str
    address: str
    gpus: list[pb.Gpu]
    python: str
    store_host: str
    interface: str
    isolated: bool
    token: str


MAX_ENDED = 50
MAX_GIVEN_BACK = 1000
MAX_RANKS = 4096
"""Of a mesh on one node: more would take the machine down before anybody could say so."""


@dataclass
class Lease:
    """A reservation's part of this node.

    Attributes:
        nodes: all of the reservation, by node rank, when it is confirmed.
        revision: of these: one higher each time that they change.
        shares: what its owner has granted (pb.Right), by name; RIGHT_UNSPECIFIED: has granted, and ended.
    """

    request: pb.ReserveRequest
    gpu_indices: list[int]
    confirmed: bool = False
    limits: Limits = field(default_factory=Limits)
    nodes: list[files_pb2.Peer] = field(default_factory=list)
    files: files_pb2.ReservationFiles = field(default_factory=files_pb2.ReservationFiles)
    shares: dict[str, pb.Right.ValueType] = field(default_factory=dict)
    revision: int = 0

    def has_node(self, address: str) -> bool:
        """Whether a node is one of the reservation's: not, when another one has its place."""
        return not self.nodes or self.number_of(address) is not None

    def number_of(self, address: str) -> int | None:
        """Return the number of a node in the reservation."""
        return next((number for number, peer in enumerate(self.nodes) if peer.address == address), None)

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
        self.gpus_held: dict[int, pb.GpuHolder] = {}
        """By another allocator of this machine: they are not leased."""
        self.gpus_used: dict[int, list[pb.GpuProcess]] = {}
        """What computes on GPUs: while they are not leased they are busy, and leased only to who wants them so."""
        self.leases: dict[str, Lease] = {}
        self.meshes: dict[str, Mesh] = {}
        self.ended: dict[str, pb.Ended] = {}
        """Reservations that no person released, by id, oldest first."""
        self._given_back: dict[tuple[str, str], None] = {}
        """Leases, by their reservations and their own ids ("": any), that were released before they came: their clients
        gave up, and a request is still under way."""
        self._stopped: dict[str, str] = {}
        """Meshes that were stopped, perhaps before they came, and what there is to say of that."""

    # ---- leases ----

    @property
    def procs_free(self) -> int:
        return self.procs - sum(lease.request.procs for lease in self.leases.values())

    @property
    def gpus_free(self) -> list[int]:
        """Those that are nobody's and at rest."""
        return [index for index in self._gpus_of_nobody if index not in self.gpus_used]

    @property
    def gpus_busy(self) -> list[int]:
        """Those that are nobody's, but something computes on them."""
        return [index for index in self._gpus_of_nobody if index in self.gpus_used]

    @property
    def gpus_leased(self) -> set[int]:
        return {index for lease in self.leases.values() for index in lease.gpu_indices}

    @property
    def _gpus_of_nobody(self) -> list[int]:
        taken = self.gpus_leased | self.gpu_troubles.keys() | self.gpus_held.keys()
        return [index for index in self.gpus if index not in taken]

    def reserve(self, request: pb.ReserveRequest) -> Lease:
        """Lease slots; asking again for the same reservation returns its lease.

        Raises:
            UsageError: neither procs nor gpus, or both.
            ReservationConflict: the owner's name is taken by another reservation, or the node has another lease of
                this one.
            CapacityError: not enough is free; the message says who holds the rest.
            ReservationNotFound: it was released before.
        """
        if lease := self.leases.get(request.reservation_id):
            if lease.request.lease_id != request.lease_id:
                raise ReservationConflict(f"this node has a part of {request.name!r} already: try again in a moment")
            return lease
        if any((request.reservation_id, lease_id) in self._given_back for lease_id in ("", request.lease_id)):
            raise ReservationNotFound(f"{request.name} was given back before it was leased")
        if bool(request.procs) == bool(request.gpus):
            raise UsageError("ask for --procs N (CPU ranks) or --gpus N, per node, not both")
        for lease in self.leases.values():
            if (lease.request.name, lease.request.owner) == (request.name, request.owner):
                ways = f"{ATTACH_USES_IT.format(request.name)}; or release it first, or choose another name"
                raise ReservationConflict(f"{request.name!r} is already held: {ways}")
        if request.procs > self.procs_free:
            why = self._shortage(request.procs, self.procs_free, self.procs, "procs")
            raise CapacityError(why, waiting_helps=request.procs <= self.procs)
        gpus = [*self.gpus_free, *(self.gpus_busy if request.force_busy else ())]
        if request.gpus > len(gpus):
            why = self._shortage(request.gpus, len(gpus), len(self.gpus), "gpus")
            raise CapacityError(why, waiting_helps=request.gpus <= len(self.gpus) - len(self.gpu_troubles))
        lease = Lease(request, sorted(gpus[: request.gpus]), limits=Limits(request.time_s, request.idle_s))
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
        not_free = (why_not_free(self.describe_gpu(pb.Gpu(index=index))) for index in self.gpus)
        reasons = [", ".join(held), *(not_free if kind == "gpus" else ())]
        return "; ".join(filter(None, [f"{wanted} {kind} per node asked for, {free} of {total} free", *reasons]))

    def describe_gpu(self, gpu: pb.Gpu) -> pb.Gpu:
        """Return what is known of a GPU, and why it is not free although this node does not lease it."""
        told = pb.Gpu(trouble=self.gpu_troubles.get(gpu.index, ""))
        told.MergeFrom(gpu)
        if gpu.index not in self.gpus_leased:
            if holder := self.gpus_held.get(gpu.index):
                told.held_by.CopyFrom(holder)
            told.used_by.extend(self.gpus_used.get(gpu.index, ()))
        return told

    def confirm(self, reservation_id: str, nodes: Iterable[files_pb2.Peer] = (), now_s: float = 0.0) -> None:
        """Keep a provisional lease; its limits count from now on."""
        lease = self.lease(reservation_id)
        lease.confirmed, lease.nodes = True, list(nodes)
        lease.limits.confirm(now_s)

    def change_members(self, request: pb.ChangeMembersRequest, here: str, now_s: float) -> list[files_pb2.Peer] | None:
        """Other nodes have places of a reservation from now on: also this one, when its lease is provisional.

        Args:
            here: the address of this node.

        Returns:
            Who else is to be told: those that are or were its nodes; None when this node knew it already.

        Raises:
            ReservationConflict: the request is to be passed on, and is not the next change that this node knows of.
            ReservationNotFound: no such lease.
        """
        lease = self.lease(request.reservation_id)
        if request.revision == lease.revision and list(request.nodes) == lease.nodes:
            return None
        if request.pass_on and request.revision != lease.revision + 1:
            raise ReservationConflict(f"another client has just changed the nodes of {lease.request.name!r} just now")
        if (request.revision, _addresses(request.nodes)) < (lease.revision, _addresses(lease.nodes)):
            return (
                None  # of two of the same revision, which clients made who could not reach the same nodes, all keep one
            )
        known = {peer.address: peer for peer in (*lease.nodes, *request.nodes)}
        lease.nodes, lease.revision = list(request.nodes), request.revision
        lease.request.nodes, number = len(lease.nodes), lease.number_of(here)
        lease.request.node_rank = lease.request.node_rank if number is None else number
        if not lease.confirmed:
            lease.confirmed, lease.files = True, request.files
            lease.shares.update(request.shares)
            lease.limits.confirm(now_s - max(0.0, request.held_s))
        return list(known.values())

    def lease(self, reservation_id: str) -> Lease:
        """Return a lease, or raise ReservationNotFound, ReservationReleased or ReservationExpired."""
        if lease := self.leases.get(reservation_id):
            return lease
        raise self.gone(reservation_id)

    def gone(self, reservation_id: str) -> ReservationNotFound:
        """Return the error for whoever asks for what is held no longer, or is just being released."""
        if ended := self.ended.get(reservation_id):
            return released(ended)
        return ReservationNotFound("the reservation is not held here (released, or never confirmed); reserve again")

    def share(self, request: pb.ShareRequest) -> None:
        """Let somebody else see or use a reservation, or no longer.

        Raises:
            ReservationNotFound: no such lease.
            UsageError: it is the owner's, who may do everything.
        """
        lease = self.lease(request.reservation_id)
        if request.to in ("", lease.request.owner):
            raise UsageError(f"{lease.request.name} is {request.to or 'nobody'}'s already: name somebody else")
        if request.right or request.to in lease.shares:
            lease.shares[request.to] = min(request.right, pb.RIGHT_RUN)

    def owner_of(self, reservation_id: str) -> str:
        """Return whose a reservation is, or was when it was released; "" when it is not known."""
        if lease := self.leases.get(reservation_id):
            return lease.request.owner
        return self.ended[reservation_id].owner if reservation_id in self.ended else ""

    def release(self, reservation_id: str, lease_id: str = "") -> list[str]:
        """Give a lease back; return the ids of its meshes, which are gone from the state.

        Args:
            lease_id: of one that may not have come yet; "": any.
        """
        if self.leases.pop(reservation_id, None) is None:
            self._given_back[reservation_id, lease_id] = None
            while len(self._given_back) > MAX_GIVEN_BACK:
                del self._given_back[next(iter(self._given_back))]
        gone = list(self.meshes_of(reservation_id))
        for mesh_id in gone:
            del self.meshes[mesh_id]
        return gone

    def is_running(self, reservation_id: str) -> bool:
        """Whether a cell or script runs on a rank of a reservation."""
        return any(
            slot.running or slot.scripts
            for mesh in self.meshes_of(reservation_id).values()
            for slot in mesh.ranks.values()
        )

    def end(self, reservation_id: str, now: float, *, why: str = "", by: str = "") -> pb.Ended:
        """Remember that a reservation is about to end, and why, or with what a person has released it. The oldest such
        memories go."""
        request = self.leases[reservation_id].request
        shape = reserve_flags(request.nodes, request.procs, request.gpus)
        ended = self.ended[reservation_id] = pb.Ended(
            reservation_id=reservation_id,
            name=request.name,
            owner=request.owner,
            ended_at=now,
            why=why,
            by=by,
            mesh_ids=self.meshes_of(reservation_id),
            reserve=f"{request.name} {shape} {request.where}".rstrip(),
        )
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
        return ended

    # ---- meshes ----

    def mesh(self, mesh_id: str) -> Mesh:
        """Return a mesh, or raise MeshNotFound, or what `lease` raises when its reservation was released."""
        if mesh := self.meshes.get(mesh_id):
            return mesh
        for ended in self.ended.values():
            if mesh_id in ended.mesh_ids:
                raise released(ended)
        raise self.no_mesh(mesh_id)

    def meshes_of(self, reservation_id: str) -> dict[str, Mesh]:
        """Return the meshes of a reservation by id."""
        return {key: mesh for key, mesh in self.meshes.items() if mesh.spec.reservation_id == reservation_id}

    def no_mesh(self, mesh_id: str) -> MeshNotFound:
        """Return why there is no mesh of an id."""
        if why := self._stopped.get(mesh_id):
            return MeshNotFound(why)
        return MeshNotFound("the mesh does not exist here any more (released?); reserve again")

    def stop(self, mesh_id: str, why: str) -> None:
        """A mesh is to be here no longer, nor to come any more."""
        self._stopped.setdefault(mesh_id, why)  # who stops it once more has nothing to say
        while len(self._stopped) > MAX_GIVEN_BACK:
            del self._stopped[next(iter(self._stopped))]

    def check_wanted(self, mesh_id: str) -> None:
        """Raise MeshNotFound when a mesh was stopped, while it or its store was being started."""
        if mesh_id in self._stopped:
            raise MeshNotFound("the mesh was stopped before it was started")

    def add_mesh(self, spec: pb.SpawnRequest) -> Mesh:
        """Add a mesh to a lease; its ranks become ready one by one. One beside "main" shares the slots of that: its
        ranks are not counted, and the GPUs go round among them.

        Raises:
            ReservationNotFound: no such lease.
            CapacityError: more ranks than slots.
            UsageError: it is there already.
            MeshNotFound: it was stopped before it came.
        """
        lease = self.lease(spec.reservation_id)
        self.check_wanted(spec.mesh_id)
        slots = lease.request.gpus or lease.request.procs
        if spec.mesh_id in self.meshes:
            raise UsageError("a mesh of that id is there already")
        if spec.ranks > slots and spec.name == config.MAIN_MESH:
            raise CapacityError(f"{spec.ranks} ranks do not fit in {slots} slots of {lease.request.name}")
        if spec.ranks > MAX_RANKS:
            raise CapacityError(f"a mesh has at most {MAX_RANKS:,} ranks on a node, not {spec.ranks:,}")
        mesh = self.meshes[spec.mesh_id] = Mesh(spec)
        for local_rank in range(spec.ranks):
            gpus = [lease.gpu_indices[local_rank % slots]] if lease.gpu_indices else []
            mesh.ranks[spec.first_rank + local_rank] = RankSlot(gpus)
        return mesh

    def check_nodes(self, branches: pb.Branches) -> str:
        """Raise UsageError unless all nodes below this one are of the mesh's reservation: it connects to no others.
        Return whose that is."""
        lease = self.lease(self.mesh(branches.mesh_id).spec.reservation_id)
        known = {peer.address for peer in lease.nodes}
        if strange := [node.peer.node_id for node in branches.nodes if node.peer.address not in known]:
            raise UsageError(f"{', '.join(strange)}: no node of {lease.request.name}")
        return lease.request.owner

    # ---- runs ----

    def submit(self, submit: pb.Submit, now: float) -> tuple[pb.Queued, list[Effect]]:
        """Queue a run; the same run id again changes nothing. One that has a number keeps it: the allocator before this
        one had no time to write it down.

        Returns:
            What the client is told, and the effects.

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
        earlier: pb.EarlierRuns | None = None
        if submit.give_number and not submit.run.number:
            submit.run.number = max(mesh.last_number, submit.newest) + 1
            if not submit.run.HasField("calls"):  # which neither wait nor are waited for
                earlier = mesh.note_newest(submit.run.number, mesh.all_ranks(submit))
        mesh.last_number = max(mesh.last_number, submit.run.number)
        if not submit.run.output:
            has_own = submit.run.HasField("script") or submit.run.HasField("calls")
            submit.run.output = submit.run.number if has_own else self._choose_output(mesh, submit)
        run = Run(submit, now)
        run.earlier = earlier
        if run.is_calls:
            run.started.update(run.ranks)
            run.started_at = now
        slots = mesh.ranks
        run.started.update(rank for rank in run.ranks if run_id in (slots[rank].running, *slots[rank].scripts))
        queued = self.queued(mesh, run)
        mesh.add_run(run)
        dropped = mesh.drop(run) if run_id in mesh.dropped_early else []
        return queued, [*dropped, *mesh.bury(), *mesh.advance(), *mesh.trim()]

    def _choose_output(self, mesh: Mesh, submit: pb.Submit) -> int:
        """Return an output that the last runs on all these ranks left untouched, else a new one."""
        untouched = {mesh.ranks[rank].untouched for rank in submit.ranks}
        for rank in submit.ranks:
            mesh.ranks[rank].untouched = 0
        return untouched.pop() or submit.run.number if len(untouched) == 1 else submit.run.number

    def queued(self, mesh: Mesh, run: Run) -> pb.Queued:
        """Return what a client is told of a run; other notebooks are named, because they number their cells alike."""
        ahead = [name_of(other, beside=run) for other in mesh.ahead_of(run)]
        run.is_told_to_wait = bool(ahead)
        return pb.Queued(run_id=run.run_id, number=run.number, output=run.output, earlier=run.earlier, ahead=ahead)

    def begun(self, mesh_id: str, run_id: str, now: float) -> bool:
        """A run begins on a rank. Return whether clients are to be told that it waits no more."""
        run = self.meshes[mesh_id].runs[run_id]
        run.started_at = run.started_at or now
        if run.waits or not run.is_told_to_wait:
            return False
        run.is_told_to_wait = False
        return True

    def result(self, mesh_id: str, result: run_pb2.RankResult) -> list[Effect]:
        """A rank's live process finished a run."""
        mesh = self.meshes.get(mesh_id)
        slot = mesh.ranks.get(result.rank) if mesh else None
        if mesh is None or slot is None:
            return []
        slot.failure = failure_of(result)
        if slot.running == result.run_id:
            slot.running = ""
        run = mesh.runs.get(result.run_id)
        if run is None or result.rank in run.results or result.rank not in run.ranks:
            return mesh.advance()
        is_last = not any(result.rank in queued.ranks for queued in mesh.queue if queued is not run)
        slot.untouched = run.output if result.untouched and is_last else 0
        return [*mesh.finish(run, result), *([] if is_last else mesh.advance())]

    def rank_ready(self, mesh_id: str, rank: int) -> list[Effect]:
        """A rank's process is up (again) and waits for runs."""
        mesh = self.mesh(mesh_id)
        slot = mesh.ranks[rank]
        slot.ready, slot.death, slot.running, slot.untouched, slot.failure = True, None, "", 0, None
        return mesh.advance()

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
            slot.failure = failure_of(newest.results[rank])
        for run in mesh.runs.values():
            if run.is_script or run.is_calls:
                continue
            if rank in run.ranks and run.run_id == running:
                run.started.add(rank)
            elif rank in run.started and rank not in run.results and run.run_id not in done:
                run.started.discard(rank)
        return mesh.advance()

    def rank_died(self, mesh_id: str, rank: int, death: run_pb2.Death) -> list[Effect]:
        """A rank's process ended: so do its runs, running and queued."""
        mesh = self.meshes.get(mesh_id)
        if mesh is None or rank not in mesh.ranks:
            return []
        slot = mesh.ranks[rank]
        slot.death, slot.ready, slot.running = death, False, ""
        return [*mesh.bury(), *mesh.advance()]

    def rank_restarting(self, mesh_id: str, rank: int) -> list[Effect]:
        """A rank is about to be replaced: what it runs or has queued ends."""
        effects = self.rank_died(mesh_id, rank, run_pb2.Death(likely_cause=config.RESTARTED))
        self.mesh(mesh_id).ranks[rank].death = None
        return effects

    # ---- scripts ----

    def script_result(self, mesh_id: str, result: run_pb2.RankResult) -> list[Effect]:
        """A script has come to this on a rank. Its process may still be there."""
        mesh = self.meshes.get(mesh_id)
        run = mesh.runs.get(result.run_id) if mesh else None
        if mesh is None or run is None or result.rank in run.results:
            return []
        return mesh.finish(run, result)

    def script_ended(self, mesh_id: str, rank: int, run_id: str) -> list[Effect]:
        """The process of a script is gone: the next script has the rank's slot."""
        mesh = self.meshes.get(mesh_id)
        if mesh is None:
            return []
        mesh.ranks[rank].scripts.discard(run_id)
        return mesh.advance()

    def scripts_known(self, processes: Iterable[tuple[str, int, str]]) -> list[Effect]:
        """A restarted allocator knows these processes of scripts, each by mesh, rank and run. A run that was to have
        begun on other ranks begins there now.
        """
        for mesh_id, rank, run_id in processes:
            if mesh_id in self.meshes:
                self.meshes[mesh_id].ranks[rank].scripts.add(run_id)
        effects = []
        for mesh in self.meshes.values():
            for run in mesh.queue:
                if run.is_script:
                    here = {rank for rank in run.started if run.run_id in mesh.ranks[rank].scripts}
                    run.started = here | run.results.keys()
            effects += mesh.advance()
        return effects

    # ---- calls ----

    def calls(self, run_id: str) -> tuple[Mesh, Run] | None:
        """Return a run of calls that goes on, and its mesh."""
        for mesh in self.meshes.values():
            run = mesh.runs.get(run_id)
            if run is not None and run.is_calls and not run.finished:
                return mesh, run
        return None

    # ---- dropping ----

    def cancel(self, run_id: str, by: str = "") -> list[Effect]:
        """Drop a run on ranks where it has not begun; `by` is who wants that."""
        effects: list[Effect] = []
        for mesh in self.meshes.values():
            if run := mesh.runs.get(run_id):
                effects += [*mesh.drop(run, by), *mesh.advance()]
        return effects

    def withdraw(self, reservation_id: str, owner: str) -> list[Effect]:
        """Drop what somebody has submitted to the meshes of a reservation, where it has not begun."""
        effects: list[Effect] = []
        for mesh in self.meshes_of(reservation_id).values():
            for run in [run for run in mesh.queue if run.submit.owner == owner]:
                effects += mesh.drop(run)
            effects += mesh.advance()
        return effects

    def drop(self, mesh_id: str, run_ids: Sequence[str], by: str = "") -> tuple[list[str], list[Effect]]:
        """Drop runs on ranks where they have not begun, also those that have not reached this node yet.

        Args:
            by: who wants that.

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
            effects += mesh.drop(run, by)
            if run.started:
                begun.append(run_id)
        return begun, [*effects, *mesh.advance()]  # only now: none of them begins because another is gone

    def collected(self, run_id: str) -> str:
        """The client has the results. Returns the mesh's id, empty when the run is unknown."""
        for mesh_id, mesh in self.meshes.items():
            if run := mesh.runs.get(run_id):
                run.collected = True
                return mesh_id
        return ""


def _addresses(nodes: Iterable[files_pb2.Peer]) -> list[str]:
    return [peer.address for peer in nodes]
