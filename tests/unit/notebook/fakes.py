"""A client made of plain objects, and a notebook whose displays can be read."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from IPython.core.completer import provisionalcompleter
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from monarch_nb.client.connections.events import Event, Finished, Result, Text
from monarch_nb.client.doctor.diagnosis import Diagnosis, Difference
from monarch_nb.client.files.transfer import Differences, Pending, SyncReport
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.infos import EndedReservation, RankInfo, ReservationInfo, RunInfo, StackReport
from monarch_nb.client.pools.leasing import KeptFiles, ReleasedLater
from monarch_nb.client.presenting import served_notebook
from monarch_nb.client.reservations.lists import Holdings
from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.client.scripts.script import Script
from monarch_nb.errors import (
    MonarchNbError,
    NoSuchMesh,
    PickleError,
    RankFailure,
    ReservationNotFound,
    RunFailed,
    RunNotFound,
)
from monarch_nb.ground.code_names import run_name
from monarch_nb.shape import Extent


class FakeRun:
    """A run whose ranks do what the test says."""

    def __init__(self, mesh: "FakeMesh", number: int, code: str, cell_number: int) -> None:
        self.mesh, self.id, self.number, self.title, self.cell_number = mesh, f"run{number}", number, code, cell_number
        self.name = run_name(number, cell_number)
        self.ranks = mesh.ranks
        self.kept_values: list[Any] = [None] * len(self.ranks)
        self.failures: list[RankFailure] = []
        self.results: dict[int, Result] = {}
        self.finished_before: frozenset[int] = frozenset()
        self.is_script = False
        self.cut_off = False  # what is left can not be reached
        self.seen = False
        self.owner = ""
        self.notebook = served_notebook()
        self.submitted_at = time.time()
        self.interrupts: list[bool] = []
        self.stops_at = 1
        self.may_kill = False
        self.refusal: MonarchNbError | None = None
        self.options: dict[str, Any] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._done = threading.Event()

    def say(self, *events: Event) -> None:
        for event in events:
            for listener in self._listeners:
                listener(event)

    def finish(self, values: Iterable[Any] | None = None, failures: Iterable[RankFailure] = ()) -> None:
        self.failures = list(failures)
        failed = {failure.rank: failure for failure in self.failures}
        self.kept_values = list(values) if values is not None else self.kept_values
        for rank in self.ranks:
            failure = failed.get(rank)
            outcome: Any = "ok" if failure is None else failure.kind
            self.results[rank] = Result(rank, outcome, 0.0 if outcome == "cancelled" else 0.1, failure=failure)
            self.say(self.results[rank])
        self.say(Finished())
        self._done.set()

    @property
    def values(self) -> list[Any]:
        for value in self.kept_values:
            if isinstance(value, PickleError):
                raise value
        return self.kept_values

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)
        if self.done:
            listener(Finished())

    def replace_listener(self, old: Callable[[Event], None], new: Callable[[Event], None] | None) -> None:
        if new is not None:
            self.add_listener(new)
        self._listeners.remove(old)

    def lose_kernel(self) -> None:
        """The kernel that follows it dies: its view ends, and nobody hears of what comes."""
        view, *_ = self._listeners
        view(Finished())
        self._listeners.clear()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def ended_well(self) -> bool:
        return self.done and not self.failures

    def wait_news(self, timeout_s: float | None = None) -> bool:
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        if self.done or timeout_s is not None:
            return self._done.wait(timeout_s)
        if self.mesh.client.ctrl_c:
            self.mesh.client.ctrl_c -= 1
            raise KeyboardInterrupt
        return self._done.wait(5.0)

    def wait_freed(self, timeout_s: float | None = None) -> bool:
        return self.cut_off or self.wait(timeout_s)

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        self.interrupts.append(kill_stuck)
        self.may_kill = len(self.interrupts) < self.stops_at
        if self.may_kill:
            return InterruptReport(stuck={self.ranks[0]: "train.py:41"})
        if not self.done:
            self.finish(
                failures=[RankFailure(rank, "node0", "interrupted", "KeyboardInterrupt", "") for rank in self.ranks]
            )
        return InterruptReport(stopped=() if kill_stuck else self.ranks, restarted=self.ranks if kill_stuck else ())

    def collected(self) -> None:
        self.seen = True

    def raise_failures(self) -> None:
        if self.failures:
            raise RunFailed(failures=self.failures, run=self)

    def info(self) -> RunInfo:
        finished = self.ranks if self.done else ()
        title = self.title.strip().splitlines()[0]
        return RunInfo(
            *(self.id, self.number, title, self.ranks, finished, self.seen, self.submitted_at, self.cell_number),
            running_s=max((result.duration_s for result in self.results.values()), default=0.0),
            notebook=self.notebook,
            owner=self.owner,
            stopped=tuple(rank for rank, of in self.results.items() if of.outcome in ("interrupted", "cancelled")),
            mesh="" if self.mesh.name == "main" else self.mesh.name,
        )


class FakeMesh:
    """A mesh that remembers what it was asked."""

    def __init__(
        self,
        client: "FakeClient",
        reservation: Any,
        extent: Extent,
        ranks: Iterable[int] | None = None,
        name: str = "main",
    ) -> None:
        self.client, self.reservation, self.extent, self.name = client, reservation, extent, name
        self.id, self.flag = f"{reservation.id}-{name}", "" if name == "main" else f" --mesh {name}"
        self.ranks = tuple(range(extent.size)) if ranks is None else tuple(ranks)
        per_node = extent.size // reservation.nodes
        self.core = SimpleNamespace(
            ranks_per_node=per_node,
            armed_saves=None,
            is_over=False,
            by_node=lambda ranks: {
                node: [rank for rank in ranks if rank // per_node == node]
                for node in {rank // per_node for rank in ranks}
            },
            node_names=lambda ranks: [f"node{node}" for node in dict.fromkeys(rank // per_node for rank in ranks)],
            hosts=lambda ranks: {},
            connection_of=lambda rank: SimpleNamespace(name=f"node{rank // per_node}"),
            way_on=lambda said: "",
        )

    def autosave_status(self) -> None:
        """Nothing is armed."""

    def select(self, ranks: Iterable[int]) -> "FakeMesh":
        return FakeMesh(self.client, self.reservation, self.extent, ranks, self.name)

    def submit(self, code: str, *, listener: Callable[[Event], None], cell_number: int, **options: Any) -> FakeRun:
        run = FakeRun(self, len(self.client.runs) + 1, code, cell_number)
        run.options = options
        run.add_listener(listener)
        self.client.runs.append(run)
        self.client.on_submit(run)
        return run

    def start_script(self, script: Script, **options: Any) -> FakeRun:
        return self.submit(" ".join([script.path, *script.arguments]), script=script, **options)

    def attach_run(
        self, run_id: str, *, from_start: bool = False, listener: Callable[[Event], None] | None = None
    ) -> FakeRun:
        for run in self.client.runs:
            if run.id == run_id:
                self.client.calls.append(("attach_run", run_id, from_start))
                if listener:
                    run.add_listener(listener)
                self.client.on_attach(run)
                return run
        raise RunNotFound(run_id)

    def runs(self) -> list[RunInfo]:
        return [info for info in self.past_runs() if not (info.done and info.collected)]

    def past_runs(self, tracebacks_of: int = 0) -> list[RunInfo]:
        return [run.info() for run in self.client.runs if run.mesh.id == self.id]

    def interrupt(self, kill_stuck: bool = False) -> InterruptReport:
        going_on = [run for run in self.client.runs if not run.done]
        return InterruptReport.of(
            {f"run {run.number}": run.interrupt(kill_stuck=kill_stuck and run.may_kill) for run in going_on}
        )

    def push(self, values: dict[str, Any]) -> None:
        self.client.calls.append(("push", self.ranks, values))

    def pull(self, expression: str) -> list[Any]:
        self.client.calls.append(("pull", self.ranks, expression))
        return [f"{expression}@{rank}" for rank in self.ranks]

    def restart(self, ranks: Iterable[int] | None = None) -> None:
        self.client.calls.append(("restart", self.name, self.ranks if ranks is None else tuple(ranks)))

    def status(self) -> list[RankInfo]:
        return [
            RankInfo(rank, "node0", 1, "dead" if rank in self.client.dead else "idle", (), 0, "", 0.0, "killed")
            for rank in self.ranks
        ]

    def stacks(self) -> StackReport:
        return StackReport([(self.ranks, "File x.py, line 1")])

    def log_batches(self, *, lines: int | None, run: int | None, follow: bool) -> Iterator[list[LogRecord]]:
        self.client.calls.append(("logs", self.ranks, lines, run))
        if run != 2:  # which printed nothing
            yield [LogRecord(rank, "stdout", 1, "hello\n") for rank in self.ranks]
        if follow:
            yield [LogRecord(rank, "stdout", 1, "more\n") for rank in self.ranks]
            raise KeyboardInterrupt

    def complete(self, code: str, cursor: int, rank: int | None = None) -> tuple[list[str], int]:
        self.client.calls.append(("complete", code, cursor, rank))
        start = cursor - len(code[:cursor].split()[-1]) if code[:cursor].strip() else cursor
        return [word for word in ("losses", "loss_mask") if word.startswith(code[start:cursor])], start

    def inspect(self, name: str) -> tuple[str, int]:
        self.client.calls.append(("inspect", name))
        return (f"Signature: {name}(x)" if name == "model.step" else ""), self.ranks[0]


class FakeFiles:
    """Files of a reservation: none are copied until a test says so."""

    def __init__(self) -> None:
        self.copies, self.root = False, "/project"
        self.news: list[str] = []
        self.record = SimpleNamespace(reload=True, take_news=lambda: [self.news.pop(0) for _ in list(self.news)])
        self.connections = {number: SimpleNamespace(name=f"node{number}") for number in range(2)}
        self.calls: list[tuple[Any, ...]] = []
        self.reports: list[SyncReport | Exception] = []
        self.there = Differences()
        self.would = Pending()
        self.statuses: dict[str, Any] = {}
        self.instead = ""

    def instead_of(self, directory: str) -> str:
        return self.instead

    def sync(
        self, needed: Callable[[], Iterable[str]] | None = None, *, overwrite: bool = False, progress: Any
    ) -> SyncReport:
        self.calls.append(("sync", None if needed is None else sorted(needed()), overwrite))
        report = self.reports.pop(0) if self.reports else SyncReport(nodes=2)
        if isinstance(report, Exception):
            raise report
        return report

    def add(self, path: str, name: str | None) -> str:
        self.calls.append(("add", path, name))
        return name or "added"

    @property
    def added(self) -> dict[str, Path]:
        return {"added": Path("/added")}

    def remove(self, path: str) -> SyncReport:
        self.calls.append(("remove", path))
        return self.reports.pop(0)

    def pending(self, progress: Any) -> Pending:
        return self.would

    def differences(self) -> Differences:
        return self.there

    def status(self) -> dict[str, Any]:
        return self.statuses


class FakeMeshes(dict[str, FakeMesh]):
    """The meshes of a reservation."""

    def __missing__(self, name: str) -> FakeMesh:
        raise NoSuchMesh(f"no mesh {name!r} in dev: it has {', '.join(self)}")

    def now(self) -> list[FakeMesh]:
        return list(self.values())


class FakeReservation:
    """A reservation of a FakeClient."""

    def __init__(self, client: "FakeClient", name: str, nodes: int, procs: int, notebook: str | None) -> None:
        self.client, self.name, self.id, self.notebook = client, name, f"id-{name}", notebook or ""
        self.directory = os.getcwd()
        self.nodes, self.procs, self.gpus, self.owner, self.is_mine = nodes, procs, 0, "me", True
        self.nodes_silent = 0
        self.mesh = FakeMesh(client, self, Extent({"hosts": nodes, "procs": procs}))
        self.meshes = FakeMeshes({"main": self.mesh})
        self.files = FakeFiles()
        self.left_s: tuple[float | None, float | None] = (None, None)
        self.shares: dict[str, str] = {}
        self.pool, self.node_names = "lab", [f"node{node}" for node in range(nodes)]
        self.attached: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return self.name if self.is_mine else f"{self.owner}/{self.name}"

    def doctor(self) -> Diagnosis:
        differs = Difference("numpy", "2.4.0", (("1.26.4", ("node1",)),))
        return Diagnosis("dev", ("clocks",), (differs,), ("%mesh pip install numpy==2.4.0",), (), ("node0", "node1"))

    def status(self, *, memory: bool) -> Any:
        return self.info()

    def actor_infos(self) -> list[Any]:
        return []

    def extend(self, seconds: float) -> float:
        self.client.calls.append(("extend", self.name, seconds))
        return seconds + 3600

    def share(self, to: str, right: str) -> str:
        self.shares[to] = right
        return ""

    def unshare(self, to: str) -> None:
        del self.shares[to]

    def add_time_listener(self, listener: Callable[[str], None]) -> None:
        self.tell_time = listener

    def detach(self) -> None:
        self.client.calls.append(("detach", self.name))

    def release(self) -> list[KeptFiles | ReleasedLater]:
        del self.client.held[self.name]
        return self.client.kept

    def info(self) -> ReservationInfo:
        where = self.notebook, time.time() - 90, tuple(self.mesh.status()), self.nodes - self.nodes_silent
        left: dict[str, Any] = {"time_left_s": self.left_s[0], "idle_left_s": self.left_s[1], "pool": self.pool}
        left["attached"] = self.attached
        size, shape = len(self.mesh.ranks), (self.nodes, self.procs, self.gpus)
        return ReservationInfo(self.name, self.id, self.owner, *shape, *where, size, self.directory, **left)


class FakeClient:
    """Stands for the package's functions."""

    def __init__(self) -> None:
        self.held: dict[str, FakeReservation] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.runs: list[FakeRun] = []
        self.dead: set[int] = set()
        self.ended: list[EndedReservation] = []
        self.ctrl_c = 0
        self.cancelled = ""
        self.steps = ["forking ranks"]
        self.kept: list[KeptFiles | ReleasedLater] = []
        self.on_submit: Callable[[FakeRun], None] = FakeRun.finish
        self.on_attach: Callable[[FakeRun], None] = lambda run: None

    def reserve(self, name: str | None, /, *, nodes: int, procs: int, progress: Any, **options: Any) -> Any:
        self.calls.append(("reserve", name, nodes, procs, {key: value for key, value in options.items() if value}))
        name = name or "main"
        if self.ctrl_c:
            if name not in self.held:
                progress("starting local pool")
            raise KeyboardInterrupt(self.cancelled)
        if options["replace"]:
            for kept in self.held[name].release():
                progress(str(kept))
        if name not in self.held:
            for step in self.steps:
                progress(step)
            self.held[name] = FakeReservation(self, name, nodes, procs or options["gpus"], options["notebook"])
        return self.held[name]

    def attach(self, name: str | None = None, /, *, pool: str | None = None) -> Any:
        if name not in self.held:
            raise ReservationNotFound(f"no reservation {name!r}")
        return self.held[name]

    def list_reservations(self, pool: str | None = None) -> list[Any]:
        return [reservation.info() for reservation in self.held.values()]

    def list_everywhere(self) -> Holdings:
        return Holdings(("lab",), self.list_reservations(), {})

    def list_ended(self, pool: str | None = None) -> list[EndedReservation]:
        return self.ended


class Displays(CapturingDisplayPublisher):
    """What cells show; views show more from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def publish(self, *arguments: Any, **options: Any) -> None:
        with self.changed:
            super().publish(*arguments, **options)  # type: ignore[no-untyped-call]
            self.changed.notify_all()


class Notebook:
    """Runs cells in a shell and reads what they show."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.shown = Displays()
        shell.display_pub = self.shown
        shell.kernel = SimpleNamespace(
            get_parent=dict, do_inspect=lambda code, cursor_pos, *_: (code, cursor_pos)
        )  # a front end that updates displays, nobody before it

    def run(self, cell: str, **options: Any) -> ExecutionResult:
        self.shown.outputs.clear()
        return self.shell.run_cell(cell, **{"store_history": True, **options})

    def ok(self, cell: str, **options: Any) -> str:
        """Run a cell that must work; return what it displays, as text."""
        result = self.run(cell, **options)
        assert result.error_before_exec is None, result.error_before_exec
        assert result.error_in_exec is None, result.error_in_exec
        return self.text()

    def error(self, cell: str) -> BaseException:
        """Run a cell that must fail; return what it raises."""
        error = self.run(cell).error_in_exec
        assert error is not None
        return error

    def text(self) -> str:
        """What is displayed, each display as it is in the end."""
        latest: dict[Any, str] = {}
        for number, output in enumerate(self.shown.outputs):
            assert "text/plain" in output["data"]
            display_id = (output.get("transient") or {}).get("display_id")
            latest[display_id or number] = output["data"]["text/plain"]
        return "\n".join(latest.values())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until what is displayed fulfils a condition."""
        with self.shown.changed:
            assert self.shown.changed.wait_for(condition, 10.0), self.text()

    def complete(self, cell: str) -> list[str]:
        """What Tab offers at the end of a cell: the cell's last line as it would be."""
        with provisionalcompleter():
            offered = list(self.shell.Completer.completions(cell, len(cell)))
        return [(cell[: each.start] + each.text).splitlines()[-1] for each in offered]


def hello(run: FakeRun) -> None:
    """Every rank prints hello and finishes."""
    run.say(*(Text(rank, "stdout", "hello\n") for rank in run.ranks))
    run.finish(values=[rank * 2 for rank in run.ranks])


def nothing(run: FakeRun) -> None:
    """The run goes on until the test ends it."""
