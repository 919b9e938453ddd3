"""Runs a cell on more and more ranks, size after size, and makes a row of each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.runs.needs import HeldMesh, Numbered
from monarch_nb.client.runs.run import Run
from monarch_nb.client.scaling.named import numbers_in
from monarch_nb.client.scaling.report import Measured, Plan, Sample, ScalingReport, report_of
from monarch_nb.errors import AccessDenied, MeshNotFound, MonarchNbError, ReservationNotFound, RunFailed, UsageError
from monarch_nb.ground.rank_sets import MOST_NAMED, counted, listed, name_ranks

_NEWEST_LINES = 1_000
"""Of each rank: a number is looked for there first, because reading millions of lines takes long."""

_FOR_EVER = (AccessDenied, MeshNotFound, ReservationNotFound)
"""What no other size would fare better with."""


class Scaled(HeldMesh, Protocol):
    """The mesh whose ranks take part: a `Mesh`."""

    def end_groups(self) -> int: ...

    def log_batches(
        self, ranks: Iterable[int], lines: int | None = None, run: Numbered | int | None = None
    ) -> Iterator[Iterable[LogRecord]]: ...


class Submit(Protocol):
    """Begins a run of the cell on some ranks, in a world of their own.

    Args:
        repeat: counts the runs on these ranks, from 1.
    """

    def __call__(self, ranks: tuple[int, ...], repeat: int) -> Run: ...


@dataclass
class Series:
    """A series of runs, the smallest size first.

    Args:
        mesh: whose first ranks are taken.
        plan: what to measure.
        submit: begins a run.
        wait: waits until all ranks have finished it. Raises MonarchNbError or TimeoutError when it has failed, and
            KeyboardInterrupt when the series is to end.
        show: called with all rows so far whenever there is a new one, or more of one.
    """

    mesh: Scaled
    plan: Plan
    submit: Submit
    wait: Callable[[Run], None]
    show: Callable[[ScalingReport], None] = lambda _: None
    price_per_node_hour: float = 0.0
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
        return report_of(self.plan, self._measured, self.price_per_node_hour, self._notes)

    def _measure_size(self, size: int) -> None:
        ranks = self.mesh.ranks[:size]
        measured = Measured(size, len(self.mesh.core.by_node(ranks)), [])
        self._measured.append(measured)
        for repeat in range(1, self.plan.repeat + 1):
            self._end_groups()
            try:
                run = self.submit(ranks, repeat)
                self._runs.append(run)
                self.wait(run)
                measured.samples.append(self._sample_of(run))
            except (MonarchNbError, TimeoutError) as error:
                measured.failure = self._in_repeat(repeat, failure_line(error))
                if isinstance(error, _FOR_EVER):
                    raise
            self.show(self.report)
            if measured.failure:
                return
            self._check_name(measured)

    def _check_name(self, measured: Measured) -> None:
        """Run nothing else when the first run has not told its number: a name that is misspelt is found at once."""
        left = [size for size in self.plan.sizes if size > measured.size or self.plan.repeat > 1]
        if left and self._missing and sum(len(each.samples) for each in self._measured) == 1:
            del self._notes[self._missing]
            raise UsageError(f"{self._missing}; nothing else was run")

    def _in_repeat(self, repeat: int, failure: str) -> str:
        return f"run {repeat} of {self.plan.repeat}: {failure}" if self.plan.repeat > 1 else failure

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

    def _sample_of(self, run: Run) -> Sample:
        time_s = max(result.duration_s for result in run.results.values())
        found = self._number_of(run) if self.plan.wanted else None
        return Sample(time_s, found, run.number)

    def _number_of(self, run: Run) -> float | None:
        """Return the number of a run: the sum over the ranks that tell it, which may be one."""
        name = self.plan.wanted
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
