"""What the ranks of a mesh printed: their lines, and the numbers in them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.plot import Drawing, Plot
from monarch_nb.client.curves.searching import Searched, search
from monarch_nb.client.curves.words import nothing_named, resolved
from monarch_nb.client.logs.lines import LogLines
from monarch_nb.client.logs.metrics import Columns, RunMetrics
from monarch_nb.client.logs.records import LogRecord, PastLog, follow_logs, read_logs
from monarch_nb.client.meshes.looking import telling_why
from monarch_nb.client.pools.infos import RunInfo
from monarch_nb.config import cadence
from monarch_nb.errors import RunNotFound, UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.lines.named import canonical
from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run


T = TypeVar("T")

COUNTING_S = cadence(2.0)
"""So long what ranks wrote is counted for one line: millions of lines take longer."""


def logs(
    mesh: Mesh,
    ranks: int | Iterable[int] | None = None,
    lines: int | None = None,
    run: Run | RunInfo | int | None = None,
    *,
    follow: bool = False,
) -> Iterator[LogRecord]:
    """Yield everything that the ranks wrote, from their files, run after run.

    Args:
        ranks: only these ranks.
        lines: only so many of the newest lines of each rank.
        run: only this run: a Run, a RunInfo, or its number.
        follow: go on with new lines as they come, until Ctrl-C, or until `run` has finished.

    Returns:
        An iterator over LogRecords, with `rank`, `stream`, `run` and `text`.

    Raises:
        RunNotFound: there was no run of that number.

    Example:
        >>> for record in mesh.logs(ranks=[3], lines=20):  # doctest: +SKIP
        ...     print(record.rank, record.text, end="")
    """
    batches = mesh.log_batches(ranks, lines, run, follow=follow)
    return itertools.chain.from_iterable(batches)


def log_batches(
    mesh: Mesh,
    ranks: int | Iterable[int] | None = None,
    lines: int | None = None,
    run: Run | RunInfo | int | None = None,
    *,
    follow: bool = False,
) -> Iterator[Iterable[LogRecord]]:
    """Like `logs`, but yield batches of records that can be folded: all records, or those that came together."""
    number = run if isinstance(run, int) else run.number if run is not None else 0
    request = pb.ReadLogsRequest(mesh_id=mesh.id, number=number, last_lines=lines or 0, follow=follow)
    requests = []
    for on_node in mesh.core.by_node(_chosen(mesh, ranks)).values():
        of_node = pb.ReadLogsRequest(ranks=on_node)
        of_node.MergeFrom(request)
        requests.append((mesh.core.connection_of(on_node[0]), of_node))
    came = follow_logs(requests) if follow else iter([read_logs(requests)])
    batches = (_coming(mesh, batch) for batch in _coming(mesh, came))
    return _of_known_run(mesh, batches, run) if isinstance(run, int) else batches


def _coming(mesh: Mesh, came: Iterable[T]) -> Iterator[T]:
    with telling_why(mesh):
        yield from came


def _telling_why(mesh: Mesh | PastLog) -> AbstractContextManager[None]:
    """Return `telling_why`; of a mesh that has ended nobody asks why."""
    return contextlib.nullcontext() if isinstance(mesh, PastLog) else telling_why(mesh)


def _of_known_run(mesh: Mesh, batches: Iterator[Iterable[LogRecord]], number: int) -> Iterator[Iterable[LogRecord]]:
    """Yield a run's records, or raise RunNotFound if there was no such run."""
    any_came = False
    for batch in batches:
        records = iter(batch)
        for first in records:
            any_came = True
            yield itertools.chain([first], records)
    if not any_came and number > max(told.last_number for _, told in call(mesh.core.status())):
        [newest_of_each] = log_batches(mesh, lines=1)
        newest = max((record.run for record in newest_of_each), default=0)
        there = f"the newest that printed is run {newest}" if newest else "nothing was printed yet"
        raise RunNotFound(f"there is no run {number}; {there}")


def metrics(
    mesh: Mesh,
    names: str | Sequence[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    run: Run | RunInfo | int | None = None,
) -> Columns:
    """Return the numbers that ranks printed beside names, as in `loss: 2.31`.

    Args:
        names: only these names. ranks: only these ranks.
        run: a Run, a RunInfo, or its number; by default the newest run that has such numbers.

    Returns:
        Columns of equal length, with a row for each line that has a number: "rank", "step" and a column for each
        name. A value is None where a line has none. `pandas.DataFrame` takes the result as it is.

    Raises:
        UsageError: no line has the name. The message has the nearest names.
        RunNotFound: there was no run of that number.

    Example:
        >>> pandas.DataFrame(mesh.metrics("loss")).pivot(index="step", columns="rank")  # doctest: +SKIP
    """
    wanted = [names] if isinstance(names, str) else names
    numbers = mesh.numbers(wanted or (), ranks, run)
    chosen = None if wanted is None else resolved(wanted, call(numbers.names()), numbers.number)
    with telling_why(mesh):
        return call(numbers.columns(chosen))


def plot(
    mesh: Mesh | PastLog,
    *names: str,
    x: str = "",
    ranks: int | Iterable[int] | None = None,
    run: Run | RunInfo | int | Sequence[Run | RunInfo | int] | None = None,
) -> Plot:
    """Return curves of the numbers that ranks printed beside names, as `%mesh plot` draws them: rank 0's line, and
    a band over all ranks where they differ. A notebook's cell shows them live while the run goes on.

    Args:
        names: a chart for each.
        x: against the number of this name; by default the step of a line.
        ranks: only of these ranks.
        run: of that run, or of several over each other: Runs, RunInfos, or their numbers. By default of the newest
            that has all names, else of each name the newest run that has it. What none has may come from one that
            goes on.

    Returns:
        The curves: `print` draws them with characters, `svg()` and `save("loss.svg")` as a picture.

    Raises:
        UsageError: no name is given, or no line has one; the message has those that there are.
        RunNotFound: there was no run of that number, or none at all.

    Example:
        >>> mesh.plot("loss", "grad_norm")  # doctest: +SKIP
        >>> mesh.plot("loss", x="tokens", run=[12, 14]).save("loss.svg")  # doctest: +SKIP
    """
    wanted = [canonical(name) for name in names]
    several = run if isinstance(run, Sequence) else [] if run is None else [run]
    numbers = dict.fromkeys(each if isinstance(each, int) else each.number for each in several)
    runs, of_each = [numbers_of(mesh, number, ranks) for number in numbers], dict[int, Sequence[str]]()
    with _telling_why(mesh):
        if not names:
            first = runs[0] if runs else searched(mesh, (), ranks).newest()
            raise UsageError(nothing_named(call(first.names()), first.number))
        if not runs:
            queued = {info.number for info in mesh.past_runs() if info.queued}
            chosen = searched(mesh, wanted, ranks).by_name(wanted, queued)
            runs, of_each = [*chosen], {each.number: its_names for each, its_names in chosen.items()}
        return Plot(Drawing(runs, run_titles(mesh, [each.number for each in runs]), of_each or wanted, canonical(x)))


def run_titles(mesh: Mesh | PastLog, numbers: Sequence[int]) -> dict[int, str]:
    """Return what runs are called; those that are forgotten by their numbers."""
    known = {info.number: run_name(info.number, info.cell_number, owner=info.owner) for info in mesh.past_runs()}
    return {number: known.get(number) or run_name(number) for number in numbers}


def numbers(
    mesh: Mesh,
    names: Sequence[str] = (),
    ranks: int | Iterable[int] | None = None,
    run: Run | RunInfo | int | None = None,
) -> RunMetrics:
    """Return what reads the numbers of a run, by default of the newest that has these names: see
    `Searched.newest`.

    Raises:
        RunNotFound: there was no run of that number, or none at all.
    """
    if run is None:
        return searched(mesh, names, ranks).newest(names)
    with telling_why(mesh):
        return numbers_of(mesh, run if isinstance(run, int) else run.number, ranks)


def searched(
    mesh: Mesh | PastLog, names: Sequence[str] = (), ranks: int | Iterable[int] | None = None, *, older: bool = False
) -> Searched:
    """Return what the newest runs have printed: see `search`.

    Raises:
        RunNotFound: nothing has run yet.
    """
    with _telling_why(mesh):
        past_runs = mesh.past_runs()
        if not past_runs:
            raise RunNotFound("nothing has run here yet: there are no numbers to draw")
        return call(search((numbers_of(mesh, info.number, ranks) for info in reversed(past_runs)), names, older=older))


def numbers_of(mesh: Mesh | PastLog, number: int, ranks: int | Iterable[int] | None = None) -> RunMetrics:
    """Return what reads the numbers of a run, also of a mesh that has ended."""
    if isinstance(mesh, PastLog):
        return mesh.numbers(number)
    return RunMetrics.of_mesh(mesh.id, mesh.core.connections, mesh.core.ranks_per_node, number, _chosen(mesh, ranks))


def _chosen(mesh: Mesh, ranks: int | Iterable[int] | None) -> tuple[int, ...]:
    return mesh.ranks if ranks is None else mesh.select(ranks).ranks


def lines_written(mesh: Mesh, number: int) -> tuple[Counter[int], bool]:
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
