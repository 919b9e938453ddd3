"""What allocators say of reservations, ranks and runs, put together from all nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monarch_nb.allocator.state.lease import how_it_ended
from monarch_nb.client.connections.decoding import result_event
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import HeldReservation, start_directory
from monarch_nb.config import MAIN_MESH, patience
from monarch_nb.deaths import describe_death
from monarch_nb.errors import AccessDenied, RankFailure, where_besides
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.times import duration

RIGHTS = {pb.RIGHT_READ: "read", pb.RIGHT_RUN: "run"}
_STATES = {
    pb.Rank.STATE_STARTING: "starting",
    pb.Rank.STATE_IDLE: "idle",
    pb.Rank.STATE_RUNNING: "running",
    pb.Rank.STATE_DEAD: "dead",
}

TELLING_S = patience(60.0)
"""So long a client may take to tell all nodes of a run."""


@dataclass(frozen=True)
class RankInfo:
    """What an allocator knows of a rank.

    Attributes:
        state: starting, idle, running, dead, or unreachable when its allocator does not answer.
        memory_bytes: its proportional set size (PSS).
        run_id, running_s: what it runs, and for how long; empty and 0 when it is idle.
        death: how a dead one ended and the likely cause.
        failure: what the newest run that it finished has raised: "ValueError: bad batch (train.py:41)".
        cpu: how busy it was since the last reading, 1.0 is one processor; None when that was not asked for or is not
            known yet.
        waits_in: the collective, receive, store wait or init that it waits in: "all_reduce (train.py:41)"; only said
            with readings, of runs that last.
        trouble: what is wrong with a GPU that it holds: "GPU 3 has fallen off the bus: …".
        stderr_tail: what a dead one said last: the end of its stderr or, after a crash, where its cell was.
        absence: of an unreachable one: what there is to say of its node.
        where: what is known of where it is, with the collective that it waits in; told when `waits_in` is.
    """

    rank: int
    host: str
    pid: int
    state: str
    gpu_indices: tuple[int, ...] = ()
    memory_bytes: int = 0
    run_id: str = ""
    running_s: float = 0.0
    death: str | None = None
    stderr_tail: tuple[str, ...] = ()
    failure: str = ""
    cpu: float | None = None
    waits_in: str = ""
    trouble: str = ""
    absence: str = ""
    where: run_pb2.Where | None = field(default=None, repr=False, compare=False)

    @property
    def is_alive(self) -> bool:
        """Whether it is known to live."""
        return self.state in _STATES.values() and self.state != "dead"


@dataclass(frozen=True)
class RunInfo:
    """What the allocators know of a run.

    Attributes:
        collected: a client has its results.
        failures: why it failed, by rank, told only by `Mesh.past_runs`.
        failed: ranks where it raised, or that died in it.
        stopped: ranks where it was interrupted, or cancelled before it began.
        running: ranks where it has begun and goes on.
        running_s: since it began; of a finished one how long it took.
        notebook: path of the notebook that it comes from; empty when that is not known.
        is_script: it has processes of its own.
        is_calls: it is what a cell or script calls of actors.
        owner: who submitted it, when that is somebody else.
        mesh: the name of the mesh that it runs on, when that is one beside the main mesh: each numbers its runs.
    """

    run_id: str
    number: int
    title: str
    ranks: tuple[int, ...]
    finished: tuple[int, ...]
    collected: bool
    submitted_at: float
    cell_number: int
    failed: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    running_s: float = 0.0
    failures: tuple[RankFailure, ...] = ()
    notebook: str = ""
    stopped: tuple[int, ...] = ()
    is_script: bool = False
    is_calls: bool = False
    owner: str = ""
    mesh: str = ""

    @property
    def done(self) -> bool:
        return len(self.finished) == len(self.ranks)

    @property
    def holds_ranks(self) -> bool:
        """Whether cells wait for it: a script has processes of its own, and calls of actors have threads."""
        return not (self.is_script or self.is_calls)

    @property
    def queued(self) -> bool:
        """Whether it waits for its turn: it has begun on no rank."""
        return not (self.done or self.running or self.running_s)

    @property
    def was_cancelled(self) -> bool:
        """Whether it has ended without having begun on any rank."""
        return self.done and len(self.stopped) == len(self.ranks) and not self.running_s

    def __str__(self) -> str:
        return run_name(self.number, self.cell_number, self.title, owner=self.owner, mesh=self.mesh)


@dataclass(frozen=True)
class StackReport:
    """Every rank's stack, equal ones together; ranks that did not answer have an empty one."""

    groups: list[tuple[tuple[int, ...], str]]

    def __str__(self) -> str:
        parts = []
        for ranks, stack in self.groups:
            parts.append(f"── {name_ranks(ranks)} " + "─" * 40)
            parts.append(stack.rstrip() or "no answer")
        return "\n".join(parts)


@dataclass(frozen=True)
class MeshInfo:
    """A mesh of a reservation.

    Attributes:
        size: how many ranks it has when all of them live.
        nodes: the names of those that it has ranks on, in its order.
    """

    name: str
    size: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ReservationInfo:
    """What is known of a reservation.

    Attributes:
        procs, gpus: per node; one of them is 0.
        ranks: of the main mesh, by rank; those of nodes that do not answer are missing.
        nodes_answering: how many of its nodes answer. absences: what there is to say of the others.
        size: how many ranks its main mesh has when all of them live.
        created_at: seconds since the epoch.
        directory: where its ranks start, on the computer of whoever reserved it; empty when that is not known.
        time_s, idle_s: its limits: how long it is held, and how long nobody may use it; None without.
        time_left_s, idle_left_s: what is left of them; idle time counts while no cell runs and no client is attached.
        right: what we may do with it: "own", "run" cells, "read", or nothing but know of it: "".
        shares: to whom its owner has granted what, "read" or "run", by name.
        pool: that it is in.
        waiting: who waits for such nodes, the first first: "bob (2 nodes × 4 procs)".
        meshes: as far as its nodes tell, the main one first.
        node_names: what its nodes are called, by number.
        attached: paths of the notebooks that use it now.
    """

    name: str
    reservation_id: str
    owner: str
    nodes: int
    procs: int
    gpus: int
    notebook: str
    created_at: float
    ranks: tuple[RankInfo, ...]
    nodes_answering: int
    size: int = 0
    directory: str = ""
    time_s: float | None = None
    time_left_s: float | None = None
    idle_s: float | None = None
    idle_left_s: float | None = None
    right: str = "own"
    shares: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    waiting: tuple[str, ...] = ()
    absences: tuple[str, ...] = ()
    meshes: tuple[MeshInfo, ...] = ()
    node_names: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()

    @property
    def mesh_names(self) -> str:
        """`main, grown`; nothing when it has the main mesh alone."""
        return ", ".join(dict.fromkeys(mesh.name for mesh in self.meshes)) if len(self.meshes) > 1 else ""

    @property
    def nodes_without_main(self) -> tuple[str, ...]:
        """What there is to say of nodes without ranks of the main mesh: `node3: held, no ranks`."""
        if not self.meshes:
            return ()
        main, *beside = self.meshes
        used = {name for mesh in beside for name in mesh.nodes}
        others: list[str] = []
        none: list[str] = []
        for name in self.node_names:
            if name not in main.nodes:
                (others if name in used else none).append(name)
        said = {f"no ranks of {main.name}": others, "no ranks": none}
        return tuple(f"{', '.join(names)}: held, {what}" for what, names in said.items() if names)

    @property
    def held_by_me(self) -> bool:
        return self.right == "own"

    @property
    def full_name(self) -> str:
        """`dev`, or `alice/dev` when it is not ours: what `attach` takes."""
        return self.name if self.held_by_me else f"{self.owner}/{self.name}"

    @property
    def alive(self) -> tuple[int, ...]:
        """The ranks that live."""
        return tuple(info.rank for info in self.ranks if info.is_alive)

    @property
    def alive_of_all(self) -> str:
        """`8 of 8`, or `4 of 8, 1 node does not answer`; nothing where that is not ours to see."""
        if not self.right:
            return ""
        count = f"{len(self.alive)} of {self.size}"
        if not (away := self.nodes - self.nodes_answering):
            return count
        return f"{count}, {away} {'node does' if away == 1 else 'nodes do'} not answer"

    @property
    def holder(self) -> str:
        """`you`, `you, shared with bob`, `alice`, or `alice, shared with you to run`."""
        if not self.held_by_me:
            return f"{self.owner}, shared with you to {self.right}" if self.right else self.owner
        return f"you, shared with {', '.join(self.shares)}" if self.shares else "you"

    @property
    def shape(self) -> str:
        """`2 nodes × 4 procs`."""
        return str(Shape(self.nodes, self.procs, self.gpus))

    @property
    def left(self) -> str:
        """`3 h 10 min`, `3 h 10 min, idle 50 min`, or empty when nothing limits it."""
        parts = [duration(self.time_left_s)] if self.time_left_s is not None else []
        if self.idle_left_s is not None:
            parts.append(f"idle {duration(self.idle_left_s)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class EndedReservation:
    """A reservation that was released; as text "dev was released at 14:02: its time of 8 h was up".

    Attributes:
        ended_at: seconds since the epoch.
        why: "its time of 8 h was up"; empty when a person released it.
        by: where a person released it, or with what: "in the panel"; empty when it ended by itself.
        reserve: after `%mesh reserve` it makes such a one again: "dev --nodes 2 --procs 4".
    """

    name: str
    reservation_id: str
    ended_at: float
    why: str
    text: str
    by: str = ""
    reserve: str = ""

    def __str__(self) -> str:
        return self.text


def reservation_info(held: HeldReservation, pool: str = "") -> ReservationInfo:
    """Return what its nodes say of a reservation in a pool."""
    facts = held.facts
    statuses = [status for _, status in held.nodes.values()]
    main = held.main
    return ReservationInfo(
        name=facts.name,
        reservation_id=held.reservation_id,
        owner=facts.owner,
        nodes=facts.nodes,
        procs=facts.procs,
        gpus=facts.gpus,
        notebook=facts.notebook,
        created_at=facts.created_at,
        ranks=tuple(rank_infos(held, main.spec.mesh_id)) if main else (),
        nodes_answering=len(held.nodes),
        size=main.spec.world_size if main else held.shape.nodes * held.shape.per_node,
        directory=start_directory(main.spec) if main else "",
        time_s=max(status.time_s for status in statuses) or None,
        time_left_s=min(status.time_left_s for status in statuses) if facts.time_s else None,
        idle_s=facts.idle_s or None,
        idle_left_s=max(status.idle_left_s for status in statuses) if facts.idle_s else None,  # who used it last
        right="own" if held.is_mine else RIGHTS.get(facts.right, ""),
        shares=shares_of(facts),
        pool=pool,
        waiting=who_waits(one for status in statuses for one in status.waiting),
        absences=tuple(connection.absence for _, connection in sorted(held.absent.items())),
        meshes=_mesh_infos(held),
        node_names=tuple(connection.name for connection in held.connections.values()),
        attached=tuple(sorted({path for status in statuses for path in status.attached})),
    )


def _mesh_infos(held: HeldReservation) -> tuple[MeshInfo, ...]:
    meshes = sorted(held.meshes.values(), key=lambda mesh: mesh.spec.name != MAIN_MESH) if held.main else []
    return tuple(
        MeshInfo(mesh.spec.name, mesh.spec.world_size, tuple(node.name for node in mesh.connections(held).values()))
        for mesh in meshes
    )


def who_waits(told: Iterable[pb.WaitRequest]) -> tuple[str, ...]:
    """Return who waits in line, each once: a client stands in the lines of all nodes."""
    known = {one.wait_id: one for one in told}
    return tuple(f"{one.owner} ({Shape(one.nodes, one.procs, one.gpus)})" for one in known.values())


def line_sentence(waiting: Sequence[str]) -> str:
    """Return what is said to who holds nodes that others wait for; empty when nobody does."""
    waits = "waits" if len(waiting) == 1 else "wait"
    return (
        f"{', '.join(waiting)} {waits} in line for nodes like yours: %mesh release gives them back" if waiting else ""
    )


def shares_of(facts: pb.ReservationStatus) -> dict[str, str]:
    """Return what is granted to whom, by name."""
    return {name: RIGHTS[right] for name, right in sorted(facts.shares.items()) if right}


def shared_no_longer(facts: pb.ReservationStatus) -> AccessDenied | None:
    """Return the error that says that its owner shares a reservation with us no longer, if that is so."""
    if facts.right or not facts.shares:
        return None
    owner, name = facts.owner, facts.name
    return AccessDenied(f"{owner} no longer shares {name} with you (%mesh detach leaves it)", owner, name)


def ended_reservation(ended: pb.Ended) -> EndedReservation:
    """Return what a node remembers of a reservation."""
    facts = ended.name, ended.reservation_id, ended.ended_at, ended.why
    return EndedReservation(*facts, how_it_ended(ended), ended.by, ended.reserve or ended.name)


def rank_infos(held: HeldReservation, mesh_id: str) -> list[RankInfo]:
    """Return the ranks of a mesh as its nodes told them."""
    infos = [
        info
        for connection, status in held.nodes.values()
        for mesh in status.meshes
        if mesh.mesh_id == mesh_id
        for info in infos_of_node(connection.name, mesh)
    ]
    return sorted(infos, key=lambda info: info.rank)


def infos_of_node(name: str, mesh: pb.MeshStatus) -> Iterator[RankInfo]:
    """Yield the ranks of a mesh on one node."""
    for rank in mesh.ranks:
        yield RankInfo(
            rank=rank.rank,
            host=name,
            pid=rank.pid,
            state=_STATES.get(rank.state, "starting"),
            gpu_indices=tuple(rank.gpu_indices),
            memory_bytes=rank.memory_bytes,
            run_id=rank.run_id,
            running_s=rank.running_s,
            death=describe_death(rank.death) if rank.state == pb.Rank.STATE_DEAD else None,
            stderr_tail=tuple(rank.death.stderr_tail),
            failure=_failure(rank.failure) if rank.HasField("failure") else "",
            cpu=rank.cpu if rank.HasField("cpu") else None,
            waits_in=waits_in(rank.where),
            where=rank.where if rank.HasField("where") else None,
            trouble=rank.trouble,
        )


def waits_in(where: run_pb2.Where) -> str:
    """Return what a rank waits in: "all_reduce (train.py:41)"; empty when it does not. `work.wait()` waits in the
    collective that began before, where that is known."""
    if where.state != run_pb2.Where.STATE_COLLECTIVE:
        return ""
    name = (where.call.collective if where.collective == "wait" else "") or where.collective
    return f"{name} ({where.line})" if where.line else name


def _failure(failure: run_pb2.Failure) -> str:
    first, _, more = failure.message.partition("\n")
    text = f"{failure.name}: {first}{' …' if more else ''}" if failure.message else failure.name
    where = where_besides(failure.message, failure.where)
    return f"{text} ({where})" if where else text


def run_infos(told: Iterable[tuple[str, pb.MeshStatus]], reader: str = "", now_s: float = 0.0) -> list[RunInfo]:
    """Put the nodes' parts of each run of a mesh together, oldest first.

    Args:
        told: node names and what each said.
        reader: who is told: runs of others say whose they are.
        now_s: since the epoch. A run of which a node has not heard for so long will not begin there: its client was
            killed while it told the nodes. 0: nodes may still hear of any run.

    A node does not tell of runs that are over and collected, unless it is asked to, and nodes learn of that one after
    the other.
    """
    parts: dict[str, list[pb.RunStatus]] = {}
    failures: dict[str, list[RankFailure]] = {}
    newest: dict[int, int] = {}
    beside = ""
    for node, mesh in told:
        beside = mesh.name if mesh.name != MAIN_MESH else ""
        newest |= {rank.rank: mesh.last_number for rank in mesh.ranks}
        for run in mesh.runs:
            if run.ranks:
                parts.setdefault(run.run_id, []).append(run)
                results = (result_event(packed, node, of_script=run.script) for packed in run.failures)
                failures.setdefault(run.run_id, []).extend(filter(None, (each.failure for each in results)))
    infos = []
    for run_id, runs in parts.items():
        run = runs[0]
        untold = set(run.all_ranks).difference(*(part.ranks for part in runs))
        collected = {rank for rank in untold if newest.get(rank, 0) >= run.number}
        is_told = now_s - run.submitted_at > TELLING_S
        never = {rank for rank in untold - collected if is_told and rank in newest}
        info = RunInfo(
            run_id=run_id,
            number=run.number,
            title=run.title,
            ranks=tuple(sorted(run.all_ranks)),
            finished=tuple(sorted(collected.union(never, *(part.finished for part in runs)))),
            collected=bool(collected) or any(part.collected for part in runs),
            submitted_at=run.submitted_at,
            cell_number=run.cell_number,
            notebook=run.notebook,
            failed=tuple(sorted({rank for part in runs for rank in part.failed})),
            running=tuple(sorted({rank for part in runs for rank in part.running})),
            running_s=max(part.running_s for part in runs),
            failures=tuple(sorted(failures[run_id], key=lambda failure: failure.rank)),
            stopped=tuple(sorted({rank for part in runs for rank in part.stopped})),
            is_script=run.script,
            is_calls=run.calls,
            owner=run.owner if reader and run.owner != reader else "",
            mesh=beside,
        )
        infos.append(info)
    return sorted(infos, key=lambda info: info.number)
