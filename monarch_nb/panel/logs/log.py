"""A window over the logs of a mesh: rows that are numbered, folded, filtered and searched, as many as ranks printed."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from monarch_nb.client.logs.lines import LogChange, LogLine, LogLines, LogRun, LogWindow, Streams
from monarch_nb.config import cadence, gap
from monarch_nb.errors import MonarchNbError, NodeUnreachable, RunFailed
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.lines.templates import FoldBy
from monarch_nb.panel.logs.folding import OPEN_LINES, Row, RunTable
from monarch_nb.panel.logs.reading import Place, Reader, line_facts
from monarch_nb.panel.refusal import clickable
from monarch_nb.panel.shown.view import Json, below

LINES_AT_ONCE = 20_000
MAX_ROWS = 1_000
SILENT_AFTER_S = cadence(2.0)
"""Lines of ranks that have printed nothing for so long are not waited for."""
LOOK_AGAIN_S = cadence(1.0)


@dataclass(frozen=True)
class LogRequest:
    """What of a mesh's logs is to be seen.

    Attributes:
        ranks: of which ranks. run: of which run; None for all.
        search: only lines that have this; "" for all. regex: it is a regular expression.
        fold: in what lines of several ranks may differ that are one row; "off": none are.
    """

    ranks: tuple[int, ...]
    streams: Streams = "both"
    run: int | None = None
    search: str = ""
    regex: bool = False
    fold: FoldBy = "equal"


@dataclass(frozen=True)
class Ending:
    """A row that says how a run ended on some ranks: "failed: ValueError: bad batch (train.py:41)"."""

    ranks: tuple[int, ...]
    text: str


@dataclass
class _Run:
    """A run: a row with its name, those of its lines, and those that say how it failed."""

    table: RunTable
    facts: LogRun
    endings: tuple[Ending, ...] = ()
    counts: dict[int, int] = field(default_factory=dict)
    """Lines by rank."""
    grown_at: dict[int, float] = field(default_factory=dict)
    """By rank, when it was last told that it had printed something."""
    searched: dict[int, int] = field(default_factory=dict)
    """By rank, how many lines have been searched."""
    shown: dict[int, array[int]] = field(default_factory=dict)
    """By rank, the numbers of the lines that have what was searched for."""

    def __len__(self) -> int:
        rows = len(self.table) + len(self.endings)
        return rows and 1 + rows

    def rows(self, first: int, count: int) -> Iterator[Row | Ending | None]:
        """Yield rows `first` to `first + count`, as far as there are so many; None is the one with its name."""
        if first == 0 and count > 0 and len(self):
            yield None
        last = first + count - 1  # that many rows after the name
        first = max(0, first - 1)
        yield from self.table.rows(first, last - first)
        yield from self.endings[max(0, first - len(self.table)) : max(0, last - len(self.table))]


class Log:
    """One log that somebody looks at. Its coroutines run on the background loop.

    Args:
        changed: called when there are more rows, or when it has come to an end.
        is_silent: returns whether a node of that name is known not to answer.
        root: below which notebooks are named as Jupyter's contents API names them; "" for nowhere.
    """

    def __init__(
        self,
        lines: LogLines,
        request: LogRequest,
        changed: Callable[[Log], None],
        is_silent: Callable[[str], bool] = lambda _: False,
        root: str = "",
    ) -> None:
        self.id = uuid.uuid4().hex
        self.used_at = time.monotonic()
        self.error: MonarchNbError | None = None
        self._silent: dict[bool, tuple[str, ...]] = {}
        """Nodes that can not be followed, of those that were away at first and of the others."""
        self._applying = asyncio.Lock()
        self._lines, self._request, self._changed, self._is_silent = lines, request, changed, is_silent
        self._root = root
        self._runs: dict[int, _Run] = {}
        self._reader = Reader(lines, request.streams, self._is_known_away)
        self._folds = request.fold != "off" and len(request.ranks) > 1
        self._counted = False
        """Whether the nodes have counted all that there was."""
        self._untaken: set[int] = set()
        """Runs that have more than is in their tables."""
        self._ready = asyncio.Event()
        self._found: tuple[object, dict[tuple[int, int], array[int]]] | None = None
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def complete(self) -> bool:
        """Whether all that there was when it was opened is here."""
        return self._ready.is_set()

    @property
    def missing(self) -> str:
        """Whose lines are not here, and why; empty when all are."""
        nodes: dict[str, list[int]] = {}
        for rank in self._request.ranks:
            if self._reader.is_away(rank):
                nodes.setdefault(self._lines.node_of(rank) or "its node", []).append(rank)
        return "; ".join(f"{name_ranks(ranks)}: {node} does not answer" for node, ranks in nodes.items())

    def _is_known_away(self, rank: int) -> bool:
        node = self._lines.node_of(rank)
        return any(node in silent for silent in self._silent.values()) or self._is_silent(node)

    def close(self) -> None:
        """Follow it no longer."""
        self._keeping.cancel()

    async def opened(self, timeout_s: float) -> None:
        """Wait until all that there was is here.

        Raises:
            MonarchNbError: it can not be read.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        if self.error is not None:
            raise self.error

    # ---- keeping up ----

    async def _keep(self) -> None:
        ranks: dict[bool, list[int]] = {}
        for rank in self._request.ranks:
            ranks.setdefault(self._reader.is_away(rank), []).append(rank)
        try:
            async with asyncio.TaskGroup() as group:
                for are_away, chosen in ranks.items():
                    group.create_task(self._follow(chosen, are_away and len(ranks) > 1))
                group.create_task(self._look_for_missing())
        except* MonarchNbError as errors:
            self.error = next(error for error in errors.exceptions if isinstance(error, MonarchNbError))
        self._ready.set()
        self._changed(self)

    async def _follow(self, ranks: Sequence[int], are_away: bool) -> None:
        """Follow some ranks; those that are away, while others are not, are not waited for."""
        async with contextlib.aclosing(self._lines.watch(ranks, self._request.run)) as changes:
            async for change in changes:
                async with self._applying:
                    self._silent[are_away] = change.silent
                    self._counted = self._counted or (change.complete and not are_away)
                    await self._apply(change)

    async def _look_for_missing(self) -> None:
        """Take what could not be read when a node is back: the pool may learn of that after its log has."""
        before = self.missing
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if (missing := self.missing) != before or (self._counted and self._untaken):
                before = missing  # what changes from here on is for the next look
                async with self._applying:
                    await self._apply(LogChange())

    async def _apply(self, change: LogChange) -> None:
        changed: set[int] = set()
        for told in change.runs:
            run = self._run(told.number)
            run.facts, run.endings = told, self._endings(told)
        for part in change.parts:
            run = self._run(part.run)
            run.counts[part.rank] = part.lines(self._request.streams)
            run.grown_at[part.rank] = time.monotonic()
            changed.add(part.run)
        self._untaken |= changed
        for number in sorted(self._untaken) if self._counted else ():  # else some ranks would be out of step
            try:
                await self._take_all(number, self._runs[number])
            except NodeUnreachable:
                continue  # it is tried again when something comes, from the node that is back, say
            if not self._lacks(self._runs[number]):
                self._untaken.discard(number)
        if self._counted:
            self._ready.set()
        self._changed(self)

    def _run(self, number: int) -> _Run:
        if number not in self._runs:
            table = RunTable(self._request.ranks, fold=self._folds)
            self._runs[number] = _Run(table, LogRun(number, "", 0, finished=False))
            self._runs = dict(sorted(self._runs.items()))
        return self._runs[number]

    def _endings(self, told: LogRun) -> tuple[Ending, ...]:
        """Return how a run ended where it did not end well. Whoever searches wants only what was printed."""
        if self._request.search or self._request.run not in (None, told.number):
            return ()
        failures = [failure for failure in told.failures if failure.rank in self._request.ranks]
        return tuple(Ending(tuple(ranks), failure.line) for ranks, failure in RunFailed(failures=failures).groups())

    async def _take_all(self, number: int, run: _Run) -> None:
        """Take what a run has printed since, also of a node that is back while the others are read."""
        while True:
            before = self.missing
            await self._take(number, run)
            if not before or self.missing or not self._lacks(run):
                break

    async def _take(self, number: int, run: _Run) -> None:
        """Make rows of what a run has printed since."""
        if self._request.search:
            await self._search_new(number, run)
        while self._folds and (windows := self._unread(number, run)):
            digests = await self._digests(run, windows)
            for window, found in zip(windows, digests, strict=True):
                run.table.put(window.rank, window.first, found)
            if not any(len(found) == LINES_AT_ONCE for found in digests):
                break
            await self._lay_out(run, silent=())
            self._changed(self)
        if not self._folds:
            for rank in run.counts:
                run.table.set_count(rank, self._count(run, rank))
        since = time.monotonic() - SILENT_AFTER_S
        await self._lay_out(run, [rank for rank in self._request.ranks if run.grown_at.get(rank, 0.0) < since])

    @staticmethod
    async def _lay_out(run: _Run, silent: Container[int]) -> None:
        for _ in run.table.lay_out(silent):
            await asyncio.sleep(0)  # others have their turn

    def _lacks(self, run: _Run) -> bool:
        """Whether there are lines that were not read: their nodes did not answer then, if they do by now or not."""
        read = run.searched.get if self._request.search else lambda rank, _: run.table.count(rank)
        return any(read(rank, 0) < count for rank, count in run.counts.items())

    def _count(self, run: _Run, rank: int) -> int:
        return len(run.shown.get(rank, ())) if self._request.search else run.counts[rank]

    def _unread(self, number: int, run: _Run) -> list[LogWindow]:
        """Return what to read next: what is new, and the newest lines again, which may have changed."""
        windows = []
        for rank in run.counts:
            if self._reader.is_away(rank):
                continue  # the others go on without it
            first = max(run.table.settled(rank), run.table.count(rank) - OPEN_LINES, 0)
            if count := min(LINES_AT_ONCE, self._count(run, rank) - first):
                windows.append(LogWindow(number, rank, first, count))
        return windows

    async def _digests(self, run: _Run, windows: Sequence[LogWindow]) -> list[array[int]]:
        if not self._request.search:
            return await self._lines.digests(windows, self._request.streams, self._request.fold)
        spans = []
        for window in windows:
            numbers = run.shown[window.rank][window.first : window.first + window.count]
            spans.append(LogWindow(window.run, window.rank, numbers[0], numbers[-1] - numbers[0] + 1))
        digests = await self._lines.digests(spans, self._request.streams, self._request.fold)
        return [
            array(
                "Q", (found[number - span.first] for number in run.shown[window.rank][window.first :][: window.count])
            )
            for window, span, found in zip(windows, spans, digests, strict=True)
        ]

    async def _search_new(self, number: int, run: _Run) -> None:
        answering = [rank for rank in run.counts if not self._reader.is_away(rank)]
        firsts = {rank: max(0, run.searched.get(rank, 0) - OPEN_LINES) for rank in answering}
        windows = [LogWindow(number, rank, first, run.counts[rank] - first) for rank, first in firsts.items()]
        found = await self._lines.search(
            self._request.search, windows, self._request.streams, regex=self._request.regex, ignore_case=True
        )
        for window, numbers in zip(windows, found, strict=True):
            shown = run.shown.setdefault(window.rank, array("Q"))
            del shown[bisect_left(shown, window.first) :]
            shown.extend(numbers)
            run.searched[window.rank] = window.first + window.count

    # ---- reading ----

    def __len__(self) -> int:
        """How many rows it has: of lines, and of those that say what the runs are and how they failed."""
        return sum(map(len, self._runs.values()))

    def describe(self) -> Json:
        """Return how much there is, and of whom.

        `notebooks` are the paths of all that its runs come from, also of runs of which no line is here.
        """
        return {
            "total": len(self),
            "lines": sum(len(run.table) for run in self._runs.values()),
            "complete": self.complete,
            "missing": self.missing,
            "notebooks": sorted({run.facts.notebook for run in self._runs.values() if run.facts.notebook}),
        }

    def describe_runs(self) -> list[Json]:
        """Return the runs that have rows, and where each begins."""
        firsts = accumulate(map(len, self._runs.values()), initial=0)
        return [
            {
                "number": number,
                "title": run.facts.title,
                "cell_number": run.facts.cell_number,
                "notebook": run.facts.notebook,
                "notebook_path": below(self._root, run.facts.notebook),
                "first_row": first,
            }
            for (number, run), first in zip(self._runs.items(), firsts, strict=False)
            if len(run)
        ]

    @property
    def _settled(self) -> int:
        """How many rows will stay as they are, whatever comes."""
        settled = 0
        if not self._counted:
            return settled
        for number, run in self._runs.items():
            if not run.facts.finished or number in self._untaken:
                return settled + (1 + run.table.settled_rows if len(run) else 0)
            settled += len(run)
        return settled

    def _rows(self, first: int, count: int) -> Iterator[tuple[int, Row | Ending | None]]:
        """Yield rows, each with the number of its run."""
        for number, run in self._runs.items():
            rows = len(run)
            if first < rows and count > 0:
                for row in run.rows(first, count):
                    yield number, row
                    count -= 1
                first = 0
            else:
                first -= rows

    async def read(self, first: int, count: int) -> Json:
        """Return rows `first` to `first + count`, as far as there are so many, and the runs they are from.

        A row whose ranks are all on nodes that do not answer has no text and says so.
        """
        settled, rows = self._settled, list(self._rows(first, count))
        places = {place: self._places(run, row) for place, (run, row) in enumerate(rows) if isinstance(row, Row)}
        lines = await self._reader.told(places, self._request.fold)
        told = [_row(first + index, run, row, lines.get(index)) for index, (run, row) in enumerate(rows)]
        numbers = {run for run, _ in rows}
        runs = [run for run in self.describe_runs() if run["number"] in numbers]
        return self.describe() | {"first": first, "rows": told, "runs": runs, "settled": settled}

    async def read_own(self, number: int) -> Json:
        """Return each rank's own line of a row, as far as their nodes answer; none when it is no line."""
        run, row = next(self._rows(number, 1), (0, None))
        if not isinstance(row, Row):
            return {"row": number, "run": run, "lines": []}
        places = self._places(run, row)
        lines = await self._reader.read(places)
        own = [_row(number, run, Row((place.rank,), (place.number,)), _told(lines.get(place))) for place in places]
        return {"row": number, "run": run, "line": row.line, "lines": own}

    def _places(self, run: int, row: Row) -> list[Place]:
        return [Place(run, rank, self._line(run, rank, line)) for rank, line in zip(row.ranks, row.lines, strict=True)]

    def _line(self, number: int, rank: int, line: int) -> int:
        return self._runs[number].shown[rank][line] if self._request.search else line

    async def find(self, text: str, *, regex: bool, start: int, backwards: bool) -> int | None:
        """Return the next row from `start` on that has a text, or the one before it; None when there is none."""
        found = await self._matches(text, regex=regex)
        best, base = None, 0
        for number, run in self._runs.items():
            for (of_run, rank), matches in found.items():
                if of_run != number:
                    continue
                rows = _Rows(run.table, rank, matches, base + 1)
                row = rows.at_or_before(start) if backwards else rows.at_or_after(start)
                if row is not None and (best is None or (row > best if backwards else row < best)):
                    best = row
            base += len(run)
        return best

    async def _matches(self, text: str, *, regex: bool) -> dict[tuple[int, int], array[int]]:
        """Return, by run and rank, which of the lines that are here have a text."""
        away = {rank for rank in self._request.ranks if self._reader.is_away(rank)}
        key = text, regex, away, [run.counts.copy() for run in self._runs.values()]
        if self._found is not None and self._found[0] == key:
            return self._found[1]
        windows = [
            LogWindow(number, rank, 0, count)
            for number, run in self._runs.items()
            for rank, count in run.counts.items()
            if count and rank not in away
        ]
        streams = self._request.streams
        matches = await self._lines.search(text, windows, streams, regex=regex, ignore_case=True)
        found = {}
        for window, numbers in zip(windows, matches, strict=True):
            found[window.run, window.rank] = self._indices(window, numbers)
        self._found = key, found
        return found

    def _indices(self, window: LogWindow, numbers: array[int]) -> array[int]:
        """Return which of the shown lines those are."""
        if not self._request.search:
            return numbers
        shown = self._runs[window.run].shown.get(window.rank, array("Q"))
        places = ((bisect_left(shown, number), number) for number in numbers)
        return array("Q", (place for place, number in places if shown[place : place + 1] == array("Q", [number])))


@dataclass(frozen=True)
class _Rows:
    """The rows of some lines of a rank, ascending."""

    table: RunTable
    rank: int
    lines: Sequence[int]
    base: int

    def _row(self, line: int) -> int:
        return self.base + self.table.row_of(self.rank, line)

    def at_or_after(self, row: int) -> int | None:
        place = bisect_left(self.lines, row, key=self._row)
        return self._row(self.lines[place]) if place < len(self.lines) else None

    def at_or_before(self, row: int) -> int | None:
        place = bisect_right(self.lines, row, key=self._row)
        return self._row(self.lines[place - 1]) if place else None


def _told(line: LogLine | None) -> Json | None:
    return None if line is None else line_facts(line)


def _row(number: int, run: int, row: Row | Ending | None, line: Json | None) -> Json:
    told: Json = {"row": number, "run": run, "ranks": format_ranks(row.ranks) if row else ""}
    if row is None:
        return told | {"kind": "run", "text": ""}
    if isinstance(row, Ending):
        return told | {"kind": "end", "text": row.text}
    return told | {"line": row.line} | (line or {"stream": "out", "text": "", "away": True})


OPEN_WAIT_S = cadence(0.8)
"""How long opening a log waits for all of it; more comes afterwards."""
MAX_OPEN = 32
FORGOTTEN_S = gap(600.0)
"""A log that nobody has read for so long, while nobody was connected, is closed."""
PAGE_ROWS, LEAST_PAGE_ROWS, PAGE_LINES = 256, 32, 8_192
"""So many rows are to be asked for at a time: fewer where a row has lines of many ranks."""


class Logs:
    """The logs that are open, by id.

    Args:
        publish: called with an event when one of them has grown.
        is_watched: returns whether anybody would hear it.
        is_silent, root: see Log.
    """

    def __init__(
        self,
        publish: Callable[[Json], None],
        is_watched: Callable[[], bool],
        is_silent: Callable[[str], bool] = lambda _: False,
        root: str = "",
    ) -> None:
        self._publish, self._is_watched, self._is_silent, self._root = publish, is_watched, is_silent, root
        self._logs: dict[str, Log] = {}

    async def open(self, lines: LogLines, request: LogRequest) -> Json:
        """Open one; it is followed until it is closed, or forgotten."""
        self._forget()
        log = Log(lines, request, self._tell, self._is_silent, self._root)
        self._logs[log.id] = log
        try:
            await log.opened(OPEN_WAIT_S)
        except BaseException:
            self.close(log.id)
            raise
        page = max(LEAST_PAGE_ROWS, min(PAGE_ROWS, PAGE_LINES // len(request.ranks)))
        return log.describe() | {"log": log.id, "runs": log.describe_runs(), "fold": request.fold, "page": page}

    def get(self, log_id: str) -> Log | None:
        """Return an open one."""
        log = self._logs.get(log_id)
        if log is not None:
            log.used_at = time.monotonic()
        return log

    def close(self, log_id: str) -> None:
        """Close one; closing it twice is fine."""
        if log := self._logs.pop(log_id, None):
            log.close()

    def _forget(self) -> None:
        oldest = sorted(self._logs.values(), key=lambda log: log.used_at)
        for log in oldest:
            unused = not self._is_watched() and time.monotonic() - log.used_at > FORGOTTEN_S
            if unused or len(self._logs) >= MAX_OPEN:
                self.close(log.id)

    def _tell(self, log: Log) -> None:
        event: Json = {"type": "log", "log": log.id} | log.describe()
        if log.error is not None:
            event["error"] = clickable(str(log.error))
        self._publish(event)
