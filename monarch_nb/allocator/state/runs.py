"""The runs of a mesh on one node: which ranks get which, in what order, and what they have come to. Pure.

Two lanes lead to each rank. One is of cells: the rank's live process gets them one at a time. The other is of scripts,
each of which has processes of its own: they wait for each other, but not for cells, nor cells for them. Runs of calls
(what a client calls of actors) are in neither: they wait for nothing, nothing waits for them, and their clients end
them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from monarch_nb.ground.code_names import run_name
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2

MAX_FINISHED_RUNS = 200
MAX_DROPPED_EARLY = 200
MAX_MESSAGE_CHARACTERS = 300
"""Of what a run raised, as status tells it."""
_FAILED = (run_pb2.OUTCOME_ERROR, run_pb2.OUTCOME_DIED)
_STOPPED = (run_pb2.OUTCOME_INTERRUPTED, run_pb2.OUTCOME_CANCELLED)
FAILURE_CHARACTERS = 500
"""Of a failure's message, where its traceback is not asked for."""


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
    """A finished run is old and forgotten."""

    mesh_id: str
    run_id: str


Effect = StartRun | RankFinished | RunDropped


class Run:
    """One run's part on this node.

    Attributes:
        run_id, number, ranks: of `submit`, as plain values because they are looked at all the time.
        output: the directory of its output (RunSpec.output).
        is_script, is_beside: it is a script, and one that waits for no other and holds up none.
        is_calls: actors are called in its name; ranks are not sent it.
        earlier: what its client was told (Queued.earlier).
        shown: how far clients have shown its output, by rank.
    """

    def __init__(self, submit: pb.Submit, submitted_at: float) -> None:
        self.submit, self.submitted_at = submit, submitted_at
        self.run_id, self.number, self.ranks = submit.run.run_id, submit.run.number, tuple(submit.ranks)
        self.output = submit.run.output or self.number
        self.is_script, self.is_beside = submit.run.HasField("script"), submit.run.script.beside
        self.is_calls = submit.run.HasField("calls")
        self.earlier: pb.EarlierRuns | None = None
        self.shown: dict[int, run_pb2.Cursor] = {}
        self.results: dict[int, run_pb2.RankResult] = {}
        self.started: set[int] = set()
        self.started_at = 0.0
        self.collected = False
        self.is_told_to_wait = False
        """Clients were told what it waits for, and not yet that it waits no more."""

    @property
    def cell_number(self) -> int:
        """The notebook's execution count, 0 when there is none."""
        spec = self.submit.run
        body = spec.script if self.is_script else spec.calls if self.is_calls else spec.cell
        return body.cell_number

    def unless_submitter(self, name: str) -> str:
        """Return who does something to the run; empty when it is who submitted it, to whom that is no news."""
        return "" if name == self.submit.owner else name

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
    """One rank of a mesh on this node. `death` is None while it lives; `running` is a run's id. Neither is touched by
    scripts, which have processes of their own."""

    gpu_indices: list[int] = field(default_factory=list)
    death: run_pb2.Death | None = None
    ready: bool = False
    running: str = ""
    scripts: set[str] = field(default_factory=set)
    """Ids of the runs whose processes, those of scripts, are here."""
    untouched: int = 0
    """The output that the last run on this rank left untouched, 0 if it did not."""
    failure: run_pb2.Failure | None = None
    """What the newest run that this process finished has raised."""


@dataclass
class Mesh:
    """A mesh's ranks on this node, and its runs. Methods that return effects have changed the state already."""

    spec: pb.SpawnRequest
    ranks: dict[int, RankSlot] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    last_number: int = 0
    earlier: pb.EarlierRuns = field(default_factory=pb.EarlierRuns)
    """The newest run of each node, where this one gives runs their numbers."""
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
        return any(run_id in (slot.running, *slot.scripts) for slot in self.ranks.values())

    def add_run(self, run: Run) -> None:
        self.runs[run.run_id] = run
        self.numbers.add(run.number)
        if not run.finished:
            self.queue.append(run)
            self.queue.sort(key=lambda queued: queued.number)

    def all_ranks(self, submit: pb.Submit) -> Sequence[int]:
        """Return the ranks that a run is on, also those on other nodes."""
        return submit.all_ranks or range(self.spec.world_size)

    def note_newest(self, number: int, ranks: Collection[int]) -> pb.EarlierRuns:
        """A run has got its number, and is on these ranks; return which were the newest ones before."""
        before = pb.EarlierRuns()
        before.CopyFrom(self.earlier)
        if len(ranks) == self.spec.world_size:
            self.earlier = pb.EarlierRuns(of_others=number)
        else:
            per_node = max(1, self.spec.ranks)
            self.earlier.by_node.update({rank // per_node: number for rank in ranks})
        return before

    def drop_early(self, run_id: str) -> None:
        """Drop a run when it comes, if it does."""
        self.dropped_early[run_id] = None
        if len(self.dropped_early) > MAX_DROPPED_EARLY:
            del self.dropped_early[next(iter(self.dropped_early))]

    def ahead_of(self, run: Run) -> list[Run]:
        """Return the unfinished runs that a run waits for on some rank."""
        wanted = {rank for rank in run.ranks if rank not in run.started}
        if not wanted or run.is_beside or run.is_calls:
            return []
        return [
            other
            for other in self.queue
            if other.number < run.number
            and other.is_script == run.is_script
            and not (other.is_beside or other.is_calls)
            and wanted & (set(other.ranks) - other.results.keys())
        ]

    def advance(self) -> list[Effect]:
        """Give every free rank the oldest run that waits for it. A rank is never given a run before an older one of the
        same lane."""
        effects: list[Effect] = []
        blocked: set[tuple[int, bool]] = set()
        waits = False
        for run in self.queue:
            if run.is_calls:
                continue
            waits = waits or self.lacks_earlier(run)  # what is missing comes before every newer run, on ranks unknown
            for rank in run.ranks:
                if rank in run.results or ((rank, run.is_script) in blocked and not run.is_beside):
                    continue
                slot = self.ranks[rank]
                if not waits and rank not in run.started and self._is_free(slot, run):
                    run.started.add(rank)
                    if run.is_script:
                        slot.scripts.add(run.run_id)
                    else:
                        slot.running = run.run_id
                    effects.append(StartRun(self.spec.mesh_id, rank, run.submit.run))
                if not run.is_beside:
                    blocked.add((rank, run.is_script))
        return effects

    def _is_free(self, slot: RankSlot, run: Run) -> bool:
        if not run.is_script:
            return slot.ready and not slot.running
        return run.is_beside or all(other in self.runs and self.runs[other].is_beside for other in slot.scripts)

    def lacks_earlier(self, run: Run) -> bool:
        """Whether a run that must come first has not reached this node."""
        after = run.submit.after
        return after > self.forgotten and after not in self.numbers

    def proceed(self, run_id: str) -> list[Effect]:
        """Let a run, and those before it, begin although a run before them has not come."""
        if run := self.runs.get(run_id):
            for queued in self.queue:
                if queued.number <= run.number:
                    queued.submit.after = 0
        return self.advance()

    def finish(self, run: Run, result: run_pb2.RankResult) -> list[Effect]:
        """A rank has a result, whatever it is."""
        run.results[result.rank] = result
        if run.finished:
            self.queue.remove(run)
        return [RankFinished(self.spec.mesh_id, run.run_id, result)]

    def end_calls(self, run: Run, ends: Mapping[int, run_pb2.Cursor], now: float) -> list[Effect]:
        """Nothing more is called in the name of a run of calls; `ends` are the sizes of its ranks' files."""
        effects: list[Effect] = []
        for rank in run.ranks:
            if rank not in run.results:
                result = run_pb2.RankResult(
                    run_id=run.run_id,
                    rank=rank,
                    outcome=run_pb2.OUTCOME_OK,
                    duration_s=max(0.0, now - run.started_at),
                    end=ends[rank],
                )
                effects += self.finish(run, result)
        return effects

    def drop(self, run: Run, by: str = "") -> list[Effect]:
        """Drop a run where it has not begun; `by` is who wants that, empty when it needs not be said."""
        effects: list[Effect] = []
        by = run.unless_submitter(by)
        for rank in run.ranks:
            if rank not in run.started and rank not in run.results:
                dropped = run_pb2.RankResult(
                    run_id=run.run_id, rank=rank, outcome=run_pb2.OUTCOME_CANCELLED, dropped_by=by
                )
                effects += self.finish(run, dropped)
        return effects

    def bury(self) -> list[Effect]:
        """End what dead ranks were to run."""
        dead = {rank: slot.death for rank, slot in self.ranks.items() if slot.death is not None}
        effects: list[Effect] = []
        if dead:
            for run in [run for run in self.queue if not run.is_script]:
                for rank in run.ranks:
                    if rank in dead and rank not in run.results:
                        outcome = run_pb2.OUTCOME_DIED
                        result = run_pb2.RankResult(run_id=run.run_id, rank=rank, outcome=outcome, death=dead[rank])
                        effects += self.finish(run, result)
        return effects

    def trim(self) -> list[Effect]:
        """Forget the oldest finished runs that a client has collected, and any beyond twice that number."""
        excess = len(self.runs) - len(self.queue) - MAX_FINISHED_RUNS
        effects: list[Effect] = []
        for run in list(islice((run for run in self.runs.values() if run.finished), max(0, excess))):
            if run.collected or excess > MAX_FINISHED_RUNS:
                del self.runs[run.run_id]
                self.numbers.discard(run.number)
                self.forgotten = max(self.forgotten, run.number)
                effects.append(RunDropped(self.spec.mesh_id, run.run_id))
        return effects


def failure_of(result: run_pb2.RankResult) -> run_pb2.Failure | None:
    """Return what user code raised, in short."""
    if result.outcome != run_pb2.OUTCOME_ERROR:
        return None
    failure = result.failure
    return run_pb2.Failure(name=failure.name, message=failure.message[:MAX_MESSAGE_CHARACTERS], where=failure.where)


def failed_results(run: Run, *, with_tracebacks: bool = False) -> Iterator[run_pb2.RankResult]:
    """Yield what the ranks of a run told that did not come to its end."""
    for result in run.results.values():
        if result.outcome != run_pb2.OUTCOME_OK:
            failure = run_pb2.Failure()
            failure.CopyFrom(result.failure)
            if not with_tracebacks:
                failure.traceback = ""
                failure.message = failure.message[:FAILURE_CHARACTERS]
            yield run_pb2.RankResult(rank=result.rank, outcome=result.outcome, failure=failure, death=result.death)


def run_status(mesh: Mesh, run: Run, now_s: float, failures: Iterable[run_pb2.RankResult] = ()) -> pb.RunStatus:
    """Return what clients are told of a run. `now_s`: since the epoch."""
    failed = {rank for rank, result in run.results.items() if result.outcome in _FAILED}
    stopped = {rank for rank, result in run.results.items() if result.outcome in _STOPPED}
    if run.finished:
        running_s = max((result.duration_s for result in run.results.values()), default=0.0)
    else:
        running_s = now_s - run.started_at if run.started_at else 0.0
    return pb.RunStatus(
        failures=failures,
        run_id=run.run_id,
        number=run.number,
        title=run.submit.title,
        ranks=run.submit.ranks,
        all_ranks=mesh.all_ranks(run.submit),
        finished=sorted(run.results),
        failed=sorted(failed),
        stopped=sorted(stopped),
        running=sorted(run.started - run.results.keys()),
        running_s=running_s,
        collected=run.collected,
        submitted_at=run.submitted_at,
        cell_number=run.cell_number,
        notebook=run.submit.notebook,
        script=run.is_script,
        calls=run.is_calls,
        owner=run.submit.owner,
    )


def name_of(run: Run, beside: Run) -> str:
    """Return what a run is called; one of another notebook says so, because notebooks number their cells alike, and so
    does another's."""
    notebook = run.submit.notebook
    elsewhere = os.path.basename(notebook) if notebook != beside.submit.notebook else ""
    whose = run.submit.owner if run.submit.owner != beside.submit.owner else ""
    return run_name(run.number, run.cell_number, run.submit.title, elsewhere, whose)
