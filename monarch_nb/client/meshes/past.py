"""What was before this process looked: runs that others have submitted, and what ranks printed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.logs.lines import LogLines
from monarch_nb.client.logs.records import LogRecord, follow_logs, read_logs
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.looking import telling_why
from monarch_nb.client.pools.facts.infos import RunInfo
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.needs import HeldMesh, Numbered
from monarch_nb.client.runs.run import Listener, Run
from monarch_nb.config import cadence
from monarch_nb.errors import RunNotFound
from monarch_nb.proto import allocator_pb2 as pb

T = TypeVar("T")

COUNTING_S = cadence(2.0)
"""So long what ranks wrote is counted for one line: millions of lines take longer."""


def run_of(mesh: HeldMesh, info: RunInfo, listener: Listener | None, *, own_connections: bool) -> Run:
    """Return a run that another client submitted, to be followed.

    Args:
        own_connections: this process follows it already.
    """
    run = (CallsRun if info.is_calls else Run)(
        mesh,
        info.run_id,
        info.ranks,
        info.title,
        cell_number=info.cell_number,
        listener=listener,
        own_connections=own_connections,
    )
    run.number, run.submitted_at, run.notebook = info.number, info.submitted_at, info.notebook
    run.owner, run.is_script = info.owner, info.is_script
    run.finished_before = frozenset(info.finished)
    return run


def known(core: MeshCore, run_id: str) -> Run | None:
    """Return a run that this process follows. One that was refused, because it was shared no longer, is followed anew:
    it may be shared again."""
    run = core.runs.get(run_id)
    return None if run is None or run.refusal else run


def follow(
    mesh: HeldMesh,
    core: MeshCore,
    info: RunInfo,
    *,
    from_start: bool = False,
    listener: Listener | None = None,
    own_connections: bool = False,
) -> Run:
    """Follow a run that another client submitted. `own_connections` as of `run_of`."""
    run = run_of(mesh, info, listener, own_connections=own_connections)
    if known(core, info.run_id) is None:
        core.add(run)
    post(partial(run.follow, from_shown=not from_start))
    return run


def attach_run(
    mesh: HeldMesh,
    core: MeshCore,
    infos: Iterable[RunInfo],
    run_id: str,
    *,
    from_start: bool,
    listener: Listener | None,
) -> Run:
    """Follow one of some runs. See `Mesh.attach_run`."""
    found = [info for info in infos if info.run_id == run_id]
    if not found:
        raise RunNotFound(f"no run {run_id} is {'remembered' if from_start else 'going on or uncollected'}")
    run = known(core, run_id)
    if run is not None and not from_start:
        if listener is not None:
            run.add_listener(listener)
        return run
    return follow(mesh, core, found[0], from_start=from_start, listener=listener, own_connections=run is not None)


def log_batches(
    mesh: HeldMesh, ranks: Iterable[int], lines: int | None, run: Numbered | int | None, *, follow: bool
) -> Iterator[Iterable[LogRecord]]:
    """Yield what ranks wrote, together what can be folded together. See `Mesh.log_batches`."""
    number = run if isinstance(run, int) else run.number if run is not None else 0
    request = pb.ReadLogsRequest(mesh_id=mesh.id, number=number, last_lines=lines or 0, follow=follow)
    requests = []
    for on_node in mesh.core.by_node(ranks).values():
        of_node = pb.ReadLogsRequest(ranks=on_node)
        of_node.MergeFrom(request)
        requests.append((mesh.core.connection_of(on_node[0]), of_node))
    came = follow_logs(requests) if follow else iter([read_logs(requests)])
    batches = (_telling_why(mesh, batch) for batch in _telling_why(mesh, came))
    return _of_known_run(mesh, batches, run) if isinstance(run, int) else batches


def _telling_why(mesh: HeldMesh, came: Iterable[T]) -> Iterator[T]:
    with telling_why(mesh.core, mesh.reservation.pool):
        yield from came


def _of_known_run(mesh: HeldMesh, batches: Iterator[Iterable[LogRecord]], number: int) -> Iterator[Iterable[LogRecord]]:
    """Yield a run's records, or raise RunNotFound if there was no such run."""
    any_came = False
    for batch in batches:
        records = iter(batch)
        for first in records:
            any_came = True
            yield itertools.chain([first], records)
    if not any_came and number > max(told.last_number for _, told in call(mesh.core.status())):
        [newest_of_each] = log_batches(mesh, mesh.ranks, 1, None, follow=False)
        newest = max((record.run for record in newest_of_each), default=0)
        there = f"the newest that printed is run {newest}" if newest else "nothing was printed yet"
        raise RunNotFound(f"there is no run {number}; {there}")


def lines_written(mesh: HeldMesh, number: int) -> tuple[Counter[int], bool]:
    """Return how many lines each rank has written, in all runs or in one, and whether that is all of them: they are
    not counted for long."""
    log = LogLines(mesh.id, mesh.core.connections, mesh.core.ranks_per_node)
    return call(_lines_written(log, mesh.ranks, number))


async def _lines_written(log: LogLines, ranks: Iterable[int], number: int) -> tuple[Counter[int], bool]:
    written: dict[tuple[int, int], int] = {}
    complete = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(COUNTING_S), contextlib.aclosing(log.watch(ranks, number, follow=False)) as changes:
            async for change in changes:
                written |= {(part.run, part.rank): part.lines() for part in change.parts}
                complete = change.complete
    lines: Counter[int] = Counter()
    for (_, rank), count in written.items():
        lines[rank] += count
    return lines, complete
