"""What there is to say of ranks while they run: their states, stacks, runs, the names that they know, and why their
nodes do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.pools.held import raise_if_released
from monarch_nb.client.pools.infos import RankInfo, RunInfo, StackReport, infos_of_node, run_infos
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.run import Listener, Run
from monarch_nb.client.saving.asking import finish_behind
from monarch_nb.config import patience
from monarch_nb.errors import NodeUnreachable, PoolError, RankUnresponsive, RunNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.provision.jobs import trouble, what_became

if TYPE_CHECKING:
    from monarch_nb.client.meshes.core import MeshCore
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

NAMES_TIMEOUT_S = patience(1.0)
"""So long a rank is asked what it knows of a name: somebody types."""


def check_nodes(mesh: Mesh) -> None:
    """Raise NodeUnreachable unless all nodes answer, or as `telling_why`. A local pool heals itself first, and again of
    an allocator whose process was not quite dead."""
    core = mesh.core
    heal = partial(pool_object(mesh.reservation.pool).heal, core.healed.append)
    heal()
    with telling_why(mesh):
        try:
            call(core.check_nodes(mesh.ranks))
        except NodeUnreachable:
            told = len(core.healed)
            heal()
            if len(core.healed) == told:
                raise
            call(core.check_nodes(mesh.ranks))


@contextmanager
def telling_why(mesh: Mesh) -> Iterator[None]:
    """Have whoever finds that a node does not answer learn that the reservation was released, or what has become of the
    job that the node came from.

    Raises:
        NodeUnreachable: the same, with what the engine says. PoolError: all jobs of the pool have ended.
        ReservationReleased: a person has released it.
    """
    try:
        yield
    except NodeUnreachable as error:
        pool = mesh.reservation.pool
        raise_if_released(pool_object(pool).end_of(mesh.core.reservation_id))
        said, is_over = what_became(pool)
        if is_over:
            raise PoolError(said) from None
        if not said:
            raise
        raise NodeUnreachable(f"{error}; {said}", error.node) from None


def restart(mesh: Mesh, ranks: int | Iterable[int] | None = None) -> None:
    """Replace ranks by fresh ones with the same numbers, and return when the new ranks are ready.

    The restarted ranks lose their variables and imports. The other ranks keep theirs. Their process groups are
    aborted, so that an `init_process_group()` on all ranks forms a new group. A save in the background is waited
    for first.

    Args:
        ranks: a rank, or several; by default all ranks of this mesh or part.

    Raises:
        TargetError: a rank is not in this mesh.
        NodeUnreachable: a node does not answer. SpawnError: a new rank could not start.
    """
    chosen = mesh.ranks if ranks is None else mesh.select(ranks).ranks
    finish_behind(mesh)
    with telling_why(mesh):
        call(mesh.core.restart(chosen))


def status(mesh: Mesh) -> list[RankInfo]:
    """Return the state of each rank, as the allocators know it: pid, memory, and why it died. If the nodes of a job
    do not answer, it has what the engine says about the job."""
    with telling_why(mesh):
        told = call(mesh.core.status(memory=True))
    infos = {info.rank: info for connection, on_node in told for info in infos_of_node(connection.name, on_node)}
    said = "" if infos.keys() >= set(mesh.ranks) else trouble(mesh.reservation.pool)
    return [infos.get(rank) or _unreachable(mesh.core, rank, said) for rank in mesh.ranks]


def _unreachable(core: MeshCore, rank: int, said: str) -> RankInfo:
    """Return what this process knows of a rank: also what it ran, if that was sent from here or is followed here."""
    node = core.connection_of(rank)
    absence = "; ".join(filter(None, (core.with_line(node.absence), said)))
    run = next((run for run in core.going_on() if rank in run.left()), None)
    if run is None:
        return RankInfo(rank, node.name, 0, "unreachable", absence=absence)
    since_s = time.time() - run.submitted_at
    return RankInfo(rank, node.name, 0, "unreachable", run_id=run.id, running_s=since_s, absence=absence)


def known(mesh: Mesh) -> tuple[list[RankInfo], list[RunInfo]]:
    """Return what this process knows of ranks and runs while no node answers; no ranks when one does. Asks nobody."""
    core = mesh.core
    if any(core.is_node_up(node) for node in core.connections):
        return [], []
    return [_unreachable(core, rank, "") for rank in mesh.ranks], [run_info(run) for run in core.going_on()]


def run_info(run: Run) -> RunInfo:
    """Return what this process knows of a run."""
    left, since_s = tuple(run.left()), time.time() - run.submitted_at
    return RunInfo(
        *(run.id, run.number, run.title, run.ranks, tuple(rank for rank in run.ranks if rank not in left), False),
        *(run.submitted_at, run.cell_number),
        running=left if run.number else (),
        running_s=since_s if run.number else 0.0,
        notebook=run.notebook,
        is_script=run.is_script,
        is_calls=run.is_calls,
        owner=run.owner,
    )


def where(mesh: Mesh) -> dict[int, run_pb2.Where]:
    """Return where each rank's main thread is, by rank. Ranks that do not answer are missing."""
    return call(mesh.core.where(mesh.ranks))


def stacks(mesh: Mesh) -> StackReport:
    """Return every rank's Python stack, or why there is none. It works also while C code holds the interpreter."""
    replies = call(mesh.core.control(mesh.ranks, stack=True))
    silent = {rank: _why_silent(mesh.core, rank) for rank in mesh.ranks if rank not in replies}
    said, is_over = what_became(mesh.reservation.pool) if any(silent.values()) else ("", False)
    groups: dict[str, list[int]] = {}
    for rank in mesh.ranks:
        away = silent.get(rank, "")
        why = said if is_over else "; ".join(filter(None, (away, said)))
        told = replies[rank].stack if rank in replies else why if away else ""
        groups.setdefault(told, []).append(rank)
    return StackReport([(tuple(ranks), stack) for stack, ranks in groups.items()])


def _why_silent(core: MeshCore, rank: int) -> str:
    """Return why a rank said nothing, if that is its node's fault."""
    number = rank // core.ranks_per_node
    node = core.connections.get(number)
    return "" if node is None or core.is_node_up(number) else node.absence


def complete(mesh: Mesh, code: str, cursor: int, rank: int | None = None) -> tuple[list[str], int]:
    """Return completions of live names on a rank, and the index in `code` at which the completed word begins.

    Raises:
        RankUnresponsive: it does not answer at once.
    """
    alive = mesh._alive()
    if not alive:
        return [], cursor
    reply = _of_names(mesh, alive[0] if rank is None else rank, complete={"code": code, "cursor": cursor})
    return list(reply.completions), reply.completion_start


def inspect(mesh: Mesh, name: str) -> tuple[str, int]:
    """Return the signature, documentation and type of a live name (with dots) on the first living rank, and that
    rank. The text is empty when there is no such name. Raises as `complete`."""
    if alive := mesh._alive():
        return _of_names(mesh, alive[0], inspect=name).inspection, alive[0]
    return "", mesh.ranks[0]


def _of_names(mesh: Mesh, rank: int, **asked: Any) -> wire.ControlReply:
    reply = call(mesh.core.control([rank], timeout_s=NAMES_TIMEOUT_S, **asked)).get(rank)
    if reply is None:
        raise RankUnresponsive(f"rank {rank} does not answer", [rank])
    return reply


def running(mesh: Mesh) -> Iterator[Run]:
    """Yield the unfinished runs on these ranks, running or waiting, whoever submitted them. This process follows
    them from now on; `unfinished` only asks."""
    for info in mesh.unfinished():
        yield _known(mesh, info.run_id) or follow(mesh, info)


def unfinished(mesh: Mesh) -> list[RunInfo]:
    """Return what is known of the unfinished runs on these ranks, running or waiting, whoever submitted them."""
    under_way = mesh.core.under_way()
    infos = {info.run_id: info for info in mesh.runs()}
    infos |= {run.id: run_info(run) for run in under_way if run.id not in infos and not run.done}
    return [info for info in infos.values() if not (info.done or set(info.ranks).isdisjoint(mesh.ranks))]


def runs(mesh: Mesh) -> list[RunInfo]:
    """Return the runs that are unfinished, or whose results nobody has collected, oldest first."""
    here = set(mesh.core.collected)
    return [info for info in _run_infos(mesh) if not (info.done and (info.collected or info.run_id in here))]


def past_runs(mesh: Mesh, tracebacks_of: int = 0) -> list[RunInfo]:
    """Return the newest few hundred runs, also finished ones, oldest first, each with its failures.

    Args:
        tracebacks_of: the number of a run. The failures of this run have their tracebacks.
    """
    return _run_infos(mesh, pb.PastRuns(mesh_id=mesh.id, tracebacks_of=tracebacks_of))


def _run_infos(mesh: Mesh, past_runs: pb.PastRuns | None = None) -> list[RunInfo]:
    told = call(mesh.core.status(past_runs=past_runs))
    return run_infos(((connection.name, on_node) for connection, on_node in told), mesh.core.me, time.time())


def attach_run(mesh: Mesh, run_id: str, *, from_start: bool = False, listener: Listener | None = None) -> Run:
    """Follow a run that another client submitted. If this process follows the run already, return it as it is.

    Args:
        run_id: the `id` of a Run, or the `run_id` of a RunInfo.
        from_start: send all its output again, also of a finished run. By default only output that no client has
            shown is sent.
        listener: called with the run's events on a background thread.

    Raises:
        RunNotFound: there is no such run.
    """
    infos = mesh.past_runs() if from_start else mesh.runs()
    found = next((info for info in infos if info.run_id == run_id), None)
    if found is None:
        raise RunNotFound(f"no run {run_id} is {'remembered' if from_start else 'going on or uncollected'}")
    run = _known(mesh, run_id)
    if run is not None and not from_start:
        if listener is not None:
            run.add_listener(listener)
        return run
    return follow(mesh, found, from_start=from_start, listener=listener, is_apart=run is not None)


def _known(mesh: Mesh, run_id: str) -> Run | None:
    """Return a run that this process follows. One that was refused, because it was shared no longer, is followed anew:
    it may be shared again."""
    run = mesh.core.runs.get(run_id)
    return None if run is None or run.refusal else run


def follow(
    mesh: Mesh,
    info: RunInfo,
    *,
    from_start: bool = False,
    listener: Listener | None = None,
    is_apart: bool = False,
) -> Run:
    """Follow a run that another client submitted.

    Args:
        is_apart: beside this process's run of it.
    """
    run = (CallsRun if info.is_calls else Run)(
        mesh,
        info.run_id,
        info.ranks,
        info.title,
        cell_number=info.cell_number,
        listener=listener,
        is_apart=is_apart,
    )
    run.number, run.submitted_at, run.notebook = info.number, info.submitted_at, info.notebook
    run.owner, run.is_script = info.owner, info.is_script
    run.finished_before = frozenset(info.finished)
    if _known(mesh, info.run_id) is None:
        mesh.core.add(run)
    post(partial(run.follow, from_shown=not from_start))
    return run
