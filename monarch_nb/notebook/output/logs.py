"""What `%mesh logs` and `monarch-nb logs` show: what ranks wrote, run after run, equal lines of several ranks once,
and how runs failed. What is left out is said."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from monarch_nb.client.advice import here, named_here
from monarch_nb.client.connections.events import Finished, Text
from monarch_nb.client.meshes.printed import lines_written
from monarch_nb.config import LOG_LINES
from monarch_nb.errors import ReservationExpired, ReservationReleased, RunFailed
from monarch_nb.ground.code_names import run_name, run_names
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.lines.templates import FoldBy, default_fold
from monarch_nb.notebook.output.fold import HEAD_ROWS, TAIL_ROWS, Fold
from monarch_nb.notebook.output.rows import TextRow, members
from monarch_nb.provision.jobs import trouble
from monarch_nb.times import time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.logs.records import LogRecord, PastLog
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import RunInfo


def shown_logs(
    mesh: Mesh,
    lines: int | None,
    number: int | None,
    *,
    follow: bool = False,
    by: FoldBy | None = None,
) -> Iterator[str]:
    """Yield the lines to show of what the ranks of `mesh` wrote.

    Args:
        lines: the last lines of each rank; None for LOG_LINES, 0 for all.
        number: only that run, if it failed with its tracebacks.
        follow: go on with what comes.
        by: in what lines of one row may differ; None for equal lines of a run that is named, else for what is usual
            on so many ranks.

    What ranks wrote whose node does not answer is left out, which is said at the end.

    Raises:
        RunNotFound: there was no run of that number.
        NodeUnreachable: none of their nodes answers. PoolError: their job has ended.
    """
    is_asked, lines = lines is not None, LOG_LINES if lines is None else lines
    mesh, missing = _answering(mesh)
    batches: Iterator[Iterable[LogRecord]] = mesh.log_batches(lines=lines or None, run=number, follow=follow)
    cut_off = bool(lines)
    if lines and not follow:
        records = list(itertools.chain.from_iterable(batches))
        came = Counter(record.rank for record in records)
        cut_off = max(came.values(), default=0) >= lines
        if cut_off and not is_asked:  # who asks for the last lines knows that there may be more
            written, is_all = lines_written(mesh, number or 0)
            yield from map(here, earlier_lines(came, written, is_all=is_all, command=_all_lines(mesh, number)))
        elif cut_off:
            yield from _of_each_rank(lines, came)
        batches = iter([records])
    by = by or ("equal" if number else default_fold(len(mesh.ranks)))
    past = partial(mesh.past_runs, number or 0)
    logs = here(_command(mesh))
    endings = Endings(past, mesh.ranks, only=number, cut_off=cut_off, fold=by == "numbers", logs=logs)
    yield from folded_lines(batches, endings, by)
    yield from map(here, missing)


def past_lines(past: PastLog, lines: int | None, number: int | None, *, by: FoldBy | None = None) -> Iterator[str]:
    """Yield the same of a reservation that has ended. Arguments as of `shown_logs`."""
    lines = LOG_LINES if lines is None else lines
    records = list(past.records(lines or None, number))
    came = Counter(record.rank for record in records)
    cut_off = bool(lines) and max(came.values(), default=0) >= lines
    if cut_off:
        run = f" --run {number}" if number else ""
        yield here(f"… earlier lines are not shown: `%mesh logs {past.name}{run} -n 0` shows all")
        yield from _of_each_rank(lines, came)
    by = by or ("equal" if number else default_fold(len(past.ranks)))
    logs = here(f"%mesh logs {past.name}")
    endings = Endings(
        partial(past.past_runs, number or 0), past.ranks, only=number, cut_off=cut_off, fold=by == "numbers", logs=logs
    )
    yield from folded_lines([records], endings, by)


def _of_each_rank(lines: int, came: Counter[int]) -> Iterator[str]:
    """Yield that so many lines are those of each rank, as they are more than `tail -n` would show."""
    if len(came) > 1:
        yield f"the last {'line' if lines == 1 else f'{lines:,} lines'} of each rank, not of all together:"


def _command(mesh: Mesh) -> str:
    """Return what shows the logs of a mesh."""
    return f"%mesh logs{named_here(mesh.reservation.name)}{mesh.flag}"


def _all_lines(mesh: Mesh, number: int | None) -> str:
    """Return what shows all lines of these ranks."""
    targets = f" -t {format_ranks(mesh.ranks)}" if len(mesh.ranks) < mesh.extent.size else ""
    return f"{_command(mesh)}{targets}{f' --run {number}' if number else ''} -n 0"


def earlier_lines(
    came: Counter[int], written: Counter[int], *, is_all: bool, command: str = "%mesh logs -n 0"
) -> Iterator[str]:
    """Yield what there is to say of lines that are not shown, if there are any.

    Args:
        came: how many lines of each rank are shown.
        written: how many it wrote, as far as these were counted; `is_all`: that is all of them.
        command: shows all lines.

    Example:
        >>> list(earlier_lines(Counter({0: 50, 1: 50}), Counter({0: 120, 1: 120}), is_all=True))
        ['… 140 earlier lines on ranks 0-1 not shown: `%mesh logs -n 0` shows all']
    """
    if earlier := written - came:
        count = f"{earlier.total():,} earlier {'line' if earlier.total() == 1 else 'lines'}"
        ranks = name_ranks(sorted(earlier))
        yield f"… {'' if is_all else 'at least '}{count} on {ranks} not shown: `{command}` shows all"
    elif not is_all:
        yield f"… earlier lines are not shown: `{command}` shows all"


def _answering(mesh: Mesh) -> tuple[Mesh, list[str]]:
    """Return the part of a mesh whose nodes answer, and a line for each other node and of the jobs that these came
    from; the whole when none does."""
    away: dict[str, list[int]] = {}
    for info in mesh.status():
        if info.absence:
            away.setdefault(mesh.core.connection_of(info.rank).absence, []).append(info.rank)
    there = [rank for rank in mesh.ranks if not any(rank in ranks for ranks in away.values())]
    if not away or not there:
        return mesh, []
    lines = [f"what {name_ranks(ranks)} wrote is not here: {absence}" for absence, ranks in away.items()]
    return mesh.select(there), [*lines, *filter(None, [trouble(mesh.reservation.pool)])]


def nothing_line(mesh: Mesh, number: int | None) -> str:
    """Return what to say when there are no lines to show."""
    if not number:
        return "nothing was printed yet"
    return f"{next((info for info in mesh.past_runs() if info.number == number), run_name(number))} printed nothing"


def ended_line(past: PastLog) -> str:
    """Return what to say above what a reservation has printed that has ended.

    Example:
        dev was released at 14:02: this is from what it printed
    """
    return f"{past.name} was released at {time_of_day(past.ended_at)}: this is from what it printed"


def nothing_kept(ended: ReservationExpired | ReservationReleased) -> str:
    """Return what to say when a reservation has ended and no output of it is kept.

    Example:
        foo printed nothing that is kept; it was released at 14:02 in a terminal
    """
    how = f" {ended.by}" if isinstance(ended, ReservationReleased) else f": {ended.why}"
    return f"{ended.name} printed nothing that is kept; it was released at {time_of_day(ended.ended_at)}{how.rstrip()}"


class Endings:
    """What runs are called, and how those that failed ended: also those that printed nothing.

    Args:
        ask: returns the runs that are remembered.
        ranks: whose failures are told.
        only: the number of the one run that is told of, with tracebacks.
        cut_off: what was written is not shown from the beginning: nothing is told of runs before the first one shown.
        fold: failures that differ only in numbers are told as one.
        logs: the command that shows what ranks wrote.
    """

    def __init__(
        self,
        ask: Callable[[], Iterable[RunInfo]],
        ranks: Iterable[int],
        only: int | None = None,
        cut_off: bool = False,
        fold: bool = False,
        logs: str = "%mesh logs",
    ) -> None:
        self._fold, self._logs = fold, logs
        self._ask, self._ranks, self._only, self._cut_off = ask, set(ranks), only, cut_off
        self._known: dict[int, RunInfo] = {}
        self._told: int | None = None  # the newest run that was told of

    def heading(self, number: int) -> str:
        """Return the line above what a run wrote."""
        info = self._known.get(number)
        return f"── {run_names(self._known.values())[info.run_id] if info else run_name(number)} ──"

    def until(self, number: int | None) -> Iterator[str]:
        """Yield how the run told of last ended, and every one after it and before `number` (None: all that there are)
        which failed without a word."""
        before = self._known.get(self._told or 0)
        if number is None or number > max(self._known, default=0) or (before is not None and not before.done):
            self._known |= {info.number: info for info in self._ask()}
        if self._told is not None:
            yield from self._ending(self._told)
        elif self._cut_off:
            self._told = number
        for silent in sorted(self._known):
            if (self._told or 0) < silent < (number or silent + 1) and self._only in (None, silent):
                ending = list(self._ending(silent))
                yield from [self.heading(silent), *ending] if ending else ()
        self._told = number

    def _ending(self, number: int) -> Iterator[str]:
        info = self._known.get(number)
        failures = [failure for failure in info.failures if failure.rank in self._ranks] if info else []
        for ranks, failure in RunFailed(failures=failures).groups(fold=self._fold):
            has_traceback = failure.kind == "error" and failure.where and failure.name != SystemExit.__name__
            is_elsewhere = has_traceback and not failure.rendered and self._only is None
            how = f"; `{self._logs} --run {number}` shows the traceback" if is_elsewhere else ""
            yield f"[{format_ranks(ranks)}] {failure.line}{how}"
            yield from failure.traceback.splitlines()


def folded_lines(batches: Iterable[Iterable[LogRecord]], endings: Endings, by: FoldBy = "equal") -> Iterator[str]:
    """Yield the lines to show: `[0-7] text`, under a heading for each run.

    Args:
        batches: each is folded by itself; all of one run, then all of the next.
        endings: what to say of runs besides.
        by: in what lines of one row may differ.
    """
    shown = 0
    for run, of_run in (group for batch in batches for group in itertools.groupby(batch, lambda record: record.run)):
        if run != shown:
            yield from endings.until(run)
            yield endings.heading(run)
        shown = run
        texts: dict[int, list[Text]] = {}
        for record in of_run:
            texts.setdefault(record.rank, []).append(Text(record.rank, record.stream, record.text))
        # A fold keeps so many rows and no more: fold in blocks that can not have more, even if no two lines are equal.
        block = max(1, (HEAD_ROWS + TAIL_ROWS) // len(texts))
        for start in range(0, max(map(len, texts.values())), block):
            yield from _fold((each[start : start + block] for each in texts.values()), by)
    yield from endings.until(None)


def _fold(texts: Iterable[list[Text]], by: FoldBy) -> Iterator[str]:
    fold = Fold([], by, longest=sys.maxsize)
    for text in itertools.chain.from_iterable(texts):
        fold.add(text)
    fold.add(Finished())
    for row in fold.rows():
        if isinstance(row, TextRow):
            yield f"[{format_ranks(members(row.ranks))}] {row.text}"
