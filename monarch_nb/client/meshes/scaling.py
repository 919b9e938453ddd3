"""What a mesh does on more and more of its ranks: runs a cell on each size, and makes a row of it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch_nb.client.meshes.scaling_report import Measured, Plan, ScalingReport, plan, report_of
from monarch_nb.client.runs.run import OnError, Run
from monarch_nb.config import patience
from monarch_nb.errors import AccessDenied, MeshNotFound, MonarchNbError, ReservationNotFound, RunFailed, UsageError
from monarch_nb.ground import escapes
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import MOST_NAMED, counted, listed, name_ranks
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NAMED = re.compile(
    rf"""(?P<name>[A-Za-z_][\w./-]*)["']?(?:\s*[:=]\s*|\s+)(?P<number>[+-]?(?:{_DIGITS}|nan\b|inf\b))(?!\w|[.,]\d)"""
)


def numbers_in(line: str) -> dict[str, float]:
    """Return the numbers that a line names, by name; of several with one name the last.

    A number with a decimal comma is left out: nobody can tell what it means.

    Example:
        >>> numbers_in("step: 5  loss=2.31 'tokens': 12,345")
        {'step': 5.0, 'loss': 2.31, 'tokens': 12345.0}
    """
    found = _NAMED.finditer(escapes.strip(line))
    return {match["name"]: float(match["number"].replace(",", "").replace("_", "")) for match in found}


_NEWEST_LINES = 1_000
"""Of each rank: a number is looked for there first, because reading millions of lines takes long."""

_FOR_EVER = (AccessDenied, MeshNotFound, ReservationNotFound)
"""What no other size would fare better with."""


@dataclass
class Series:
    """A series of runs, the smallest size first.

    Args:
        mesh: whose first ranks are taken.
        plan: what to measure.
        submit: begins a run of the cell on some ranks, in a world of their own.
        wait: waits until all ranks have finished it. Raises MonarchNbError or TimeoutError when it has failed, and
            KeyboardInterrupt when the series is to end.
        show: called with all rows so far whenever there is a new one.
    """

    mesh: Mesh
    plan: Plan
    submit: Callable[[tuple[int, ...]], Run]
    wait: Callable[[Run], None]
    show: Callable[[ScalingReport], None] = lambda _: None
    _measured: list[Measured] = field(default_factory=list)
    _notes: dict[str, None] = field(default_factory=dict)
    _runs: list[Run] = field(default_factory=list)
    _missing: str = ""

    def measure(self) -> ScalingReport:
        """Run the whole series. Whatever happens, the ranks are of the whole world afterwards, without process groups.

        Raises:
            KeyboardInterrupt: somebody has ended it; `report` has the rows so far.
            ReservationNotFound, MeshNotFound, AccessDenied: the ranks are gone, or another's alone.
            UsageError: the first run told no number of the name that is wanted.
        """
        try:
            for size in self.plan.sizes:
                if self._is_free:
                    self._measure_size(size)
        except KeyboardInterrupt:
            self._measured[-1].failure = self._measured[-1].failure or "interrupted"
            raise
        finally:
            self._finish()
        return self.report

    def _finish(self) -> None:
        try:
            if self._is_free:
                self._end_groups()
        finally:
            self._add_last_notes()
            self.show(self.report)

    @property
    def _is_free(self) -> bool:
        """False once ranks do not stop: what comes next would wait for them for ever."""
        return all(run.done or run.refusal is not None for run in self._runs[-1:])

    @property
    def report(self) -> ScalingReport:
        """All rows so far."""
        return report_of(self.plan, self._measured, self._notes)

    def _measure_size(self, size: int) -> None:
        ranks = self.mesh.ranks[:size]
        measured = Measured(size)
        self._measured.append(measured)
        self._end_groups()
        try:
            run = self.submit(ranks)
            self._runs.append(run)
            self.wait(run)
            measured.number = self._number_of(run) if self.plan.per else None
            measured.time_s = max(result.duration_s for result in run.results.values())
            measured.run = run.number
        except (MonarchNbError, TimeoutError) as error:
            measured.failure = failure_line(error)
            if isinstance(error, _FOR_EVER):
                raise
        self.show(self.report)
        self._check_name(measured)

    def _check_name(self, measured: Measured) -> None:
        """Run nothing else when the first run has not told its number: a name that is misspelt is found at once."""
        succeeded = [each for each in self._measured if not each.failure]
        if self._missing and succeeded == [measured] and measured.size < self.plan.sizes[-1]:
            del self._notes[self._missing]
            raise UsageError(f"{self._missing}; nothing else was run")

    def _end_groups(self) -> None:
        """Have no groups of ranks that differ from those that come next; those of the user's are noticed."""
        try:
            size = self.mesh.end_groups()
        except MonarchNbError:  # the run says so
            return
        if size and not self._runs:
            self._notes[
                f"the process group of {counted(size, 'rank')} was ended for this: call dist.init_process_group() "
                "again and wrap DDP models again"
            ] = None

    def _add_last_notes(self) -> None:
        numbers = [run.number for run in self._runs if run.number]
        logs = f"%mesh logs{self.mesh.flag} --run"
        if len(numbers) == 1:
            self._notes[f"{logs} {numbers[0]} has what it printed"] = None
        elif numbers:
            runs = ", ".join(map(str, numbers)) if len(numbers) <= MOST_NAMED else f"{numbers[0]} … {numbers[-1]}"
            self._notes[f"runs {runs}: {logs} {numbers[-1]} has what the last one printed"] = None

    # ---- numbers ----

    def _number_of(self, run: Run) -> float | None:
        """Return the number of a run: the sum over the ranks that tell it, which may be one."""
        name = self.plan.per
        values = run.kept_values
        told = [found for value in values if (found := number_in(value, name)) is not None]
        others: set[str] = set()
        for lines in (_NEWEST_LINES, None):
            if told:
                break
            told, names = self._printed(run, name, lines)
            others |= names
        if not told:
            told = [float(value) for value in map(plain_number, values) if value is not None]
        if not told:
            self._missing = _nothing_of(name, len(run.ranks), others)
            self._notes[self._missing] = None
            return None
        if not math.isfinite(sum(told)):
            self._notes[f"{name} is {sum(told):g} on {counted(len(run.ranks), 'rank')}"] = None
            return None
        return sum(told)

    def _printed(self, run: Run, name: str, lines: int | None) -> tuple[list[float], set[str]]:
        """Return the last number of that name that each rank has printed, and the names of others."""
        last: dict[int, float] = {}
        names: set[str] = set()
        for batch in self.mesh.log_batches(run.ranks, lines, run):
            for record in batch:
                found = numbers_in(record.text)
                names |= found.keys()
                if name in found:
                    last[record.rank] = found[name]
        return list(last.values()), names - {name}


def number_in(value: Any, name: str) -> float | None:
    """Return the number that a cell's value, if it is a dict, has under a name."""
    return plain_number(value.get(name)) if isinstance(value, dict) else None


def plain_number(value: Any) -> float | None:
    """Return a number, or a tensor or array of one element, as a float; None for all else."""
    item = getattr(value, "item", None)
    if item is not None and not isinstance(value, type):
        try:
            value = item()
        except (TypeError, ValueError, RuntimeError):  # of several elements
            return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def failure_line(error: BaseException) -> str:
    """Return why a run failed, in one line: who was first to, and of what."""
    if isinstance(error, RunFailed) and error.failures:
        ranks, failure = error.groups()[0]
        return f"{name_ranks(ranks)} {failure.line}"
    return str(error).partition("\n")[0]


def _nothing_of(name: str, size: int, others: set[str]) -> str:
    near = difflib.get_close_matches(name, others, n=1) or sorted(others)
    there = f"; it printed {listed(near)}" if near else ""
    return f"no {name} in what the cell printed or returned on {counted(size, 'rank')}{there}"


FREED_WITHIN_S = patience(10.0)
"""Ranks that an interrupt has not freed by then hang."""


def scale(
    mesh: Mesh,
    code: str,
    sizes: Iterable[int],
    *,
    per: str = "",
    timeout_s: float | None = None,
    on_error: OnError = "abort",
    sync: bool = True,
    progress: Callable[[ScalingReport], None] | None = None,
) -> ScalingReport:
    """Run code on the first ranks of the mesh, size after size, and measure it. Ctrl-C ends the series.

    While the code runs, the ranks of a size are a world of their own: `rank`, `world_size`, torchrun's variables
    and `dist.init_process_group()` mean these ranks. Each run begins without process groups; earlier groups are
    ended. A run begins when all ranks have finished the run before. A size that fails is a row too, and the next
    size begins.

    Args:
        code: Python, as for `run`.
        sizes: numbers of ranks. The smallest runs first, and each runs once.
        per: the name of an amount, such as "tokens". The throughput is the amount divided by the time. The amount
            is looked for in the value of the last expression, if that is a dict; then in the output
            (`tokens: 12,345`, the last one counts); else it is the value itself, if that is a number. The amounts
            of several ranks are added up. Without `per`, all ranks together do the same work at every size.
        timeout_s: interrupt a run that takes longer; its size has then failed.
        on_error: as for `run`.
        sync: first copy changed files to nodes that have copies of your files.
        progress: called with the report so far after each run.

    Returns:
        The report, with a row for each size, whether its run failed or not.

    Raises:
        UsageError: the mesh does not have such a size, or the arguments make no sense. Nothing was run.
        KeyboardInterrupt: after Ctrl-C, when the ranks are free. Its text has the rows so far.

    Example:
        >>> report = mesh.scale("train(100)", [1, 2, 4], per="tokens")  # doctest: +SKIP
        >>> report.rows[-1].efficiency  # doctest: +SKIP
        0.93
    """
    asked = plan(sizes, len(mesh.ranks), per)
    if sync:
        mesh._sync()

    def submit(ranks: tuple[int, ...]) -> Run:
        want_value = bool(per)
        return mesh.select(ranks).submit(code, on_error=on_error, want_value=want_value, sync=False, own_world=True)

    def wait(run: Run) -> None:
        if not run.join(timeout_s):
            raise interrupted_after(run, timeout_s or 0)
        run.collected()
        run.raise_failures()

    with at_waits():
        series = Series(mesh, asked, submit, wait, progress or _nothing)
        try:
            return series.measure()
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"{interrupt}\n{series.report}") from None


def end_groups(mesh: Mesh) -> int:
    """Destroy the process groups of the living ranks. Return how many ranks the largest default group had."""
    alive = mesh._alive()
    if not alive:
        return 0
    spec = run_pb2.RunSpec(end_groups=run_pb2.EndGroups())
    sizes: list[int] = mesh.select(alive)._finish_quietly(spec, "end process groups")
    return max(sizes)


def interrupted_after(run: Run, timeout_s: float) -> TimeoutError:
    """Interrupt a run that takes too long, and wait until its ranks are free, or are found to hang; return what is to
    be raised."""
    report = run.interrupt()
    if not run.wait_freed(FREED_WITHIN_S):
        return TimeoutError(f"not finished after {timeout_s:g} s; {report}")
    run.collected()
    return TimeoutError(f"not finished after {timeout_s:g} s: interrupted")


def _nothing(_: ScalingReport) -> None:
    pass
