"""What allocators say of ranks and runs, put together from all nodes. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb.client.decoding import describe_death, result_event
from monarch_nb.code_names import run_name
from monarch_nb.errors import RankFailure, where_besides
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.pool import HeldReservation

_STATES = {
    pb.Rank.STATE_STARTING: "starting",
    pb.Rank.STATE_IDLE: "idle",
    pb.Rank.STATE_RUNNING: "running",
    pb.Rank.STATE_DEAD: "dead",
}


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
        running: ranks where it has begun and goes on.
        running_s: since it began; of a finished one how long it took.
        notebook: path of the notebook that it comes from; empty when that is not known.
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

    @property
    def done(self) -> bool:
        return len(self.finished) == len(self.ranks)

    def __str__(self) -> str:
        return run_name(self.number, self.cell_number, self.title)


def run_names(infos: Iterable[RunInfo]) -> dict[str, str]:
    """Return what runs are called, by id: with their notebook's name where they come from several, because these number
    their cells alike."""
    infos = list(infos)
    paths = {info.notebook for info in infos if info.notebook}
    names = [os.path.basename(path) for path in paths]
    notebooks = {path: path if names.count(os.path.basename(path)) > 1 else os.path.basename(path) for path in paths}
    return {
        info.run_id: run_name(
            info.number, info.cell_number, info.title, notebooks.get(info.notebook, "") if len(paths) > 1 else ""
        )
        for info in infos
    }


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
            trouble=rank.trouble,
        )


def waits_in(where: run_pb2.Where) -> str:
    """Return what a rank waits in: "all_reduce (train.py:41)"; empty when it does not."""
    if where.state != run_pb2.Where.STATE_COLLECTIVE:
        return ""
    return f"{where.collective} ({where.line})" if where.line else where.collective


def _failure(failure: run_pb2.Failure) -> str:
    first, _, more = failure.message.partition("\n")
    text = f"{failure.name}: {first}{' …' if more else ''}" if failure.message else failure.name
    where = where_besides(failure.message, failure.where)
    return f"{text} ({where})" if where else text


def run_infos(told: Iterable[tuple[str, pb.MeshStatus]]) -> list[RunInfo]:
    """Put the nodes' parts of each run together, oldest first.

    Args:
        told: node names and what each said.

    A node does not tell of runs that are over and collected, unless it is asked to, and nodes learn of that one after
    the other.
    """
    parts: dict[str, list[pb.RunStatus]] = {}
    failures: dict[str, list[RankFailure]] = {}
    newest: dict[int, int] = {}
    for node, mesh in told:
        newest |= {rank.rank: mesh.last_number for rank in mesh.ranks}
        for run in mesh.runs:
            if run.ranks:
                parts.setdefault(run.run_id, []).append(run)
                results = (result_event(packed, node) for packed in run.failures)
                failures.setdefault(run.run_id, []).extend(filter(None, (each.failure for each in results)))
    infos = []
    for run_id, runs in parts.items():
        run = runs[0]
        untold = set(run.all_ranks).difference(*(part.ranks for part in runs))
        collected = {rank for rank in untold if newest.get(rank, 0) >= run.number}
        info = RunInfo(
            run_id=run_id,
            number=run.number,
            title=run.title,
            ranks=tuple(sorted(run.all_ranks)),
            finished=tuple(sorted(collected.union(*(part.finished for part in runs)))),
            collected=bool(collected) or any(part.collected for part in runs),
            submitted_at=run.submitted_at,
            cell_number=run.cell_number,
            notebook=run.notebook,
            failed=tuple(sorted({rank for part in runs for rank in part.failed})),
            running=tuple(sorted({rank for part in runs for rank in part.running})),
            running_s=max(part.running_s for part in runs),
            failures=tuple(sorted(failures[run_id], key=lambda failure: failure.rank)),
        )
        infos.append(info)
    return sorted(infos, key=lambda info: info.number)
