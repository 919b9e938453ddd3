"""A cell with `--scale`: it runs on more and more ranks, and what that takes is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.debug.answering import Answering
from monarch_nb.client.meshes.scaling import Series
from monarch_nb.client.meshes.scaling_report import Plan, ScalingReport, plan, sizes_of
from monarch_nb.config import NONINTERACTIVE_VARIABLE
from monarch_nb.errors import RunFailed, UsageError
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import counted
from monarch_nb.lines.templates import checked_fold
from monarch_nb.notebook.cells.following import SCREEN, KernelEnds, RunInterrupted, RunTimeout, on_breakpoint, wait_for
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.publishing import call_later
from monarch_nb.notebook.output.tables import is_notebook
from monarch_nb.notebook.output.view import RunView
from monarch_nb.notebook.scaling import ScalingView
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import OnError, Run
    from monarch_nb.notebook.output.render import Group

_NOT_WITH_SCALE = {"noblock": "the cell waits for each size", "local": "the kernel is no rank"}


def asks_for_scaling(parsed: Parsed) -> bool:
    """Return whether a line has `--scale`.

    Raises:
        UsageError: flags that do not go together.
    """
    if parsed.text("scale") is None:
        if parsed.text("per") is not None:
            raise UsageError("--per belongs to --scale: %%mesh --scale 1,2,4 --per tokens")
        return False
    for key, why in _NOT_WITH_SCALE.items():
        if parsed.switch(key):
            raise UsageError(f"--scale does not go with --{key}: {why}")
    return True


def plan_of(parsed: Parsed, most: int) -> Plan:
    """Return what a line asks for, of a mesh with `most` ranks.

    Raises:
        UsageError: it makes no sense; nothing was run.
    """
    return plan(sizes_of(parsed.text("scale") or ""), most, parsed.text("per") or "")


def group_of(parsed: Parsed) -> Group:
    """Return how a line wants output to be ordered."""
    return cast("Group", parsed.text("group_outputs") or "order")


@dataclass
class ScalingCell:
    """One cell with `--scale`.

    Args:
        parsed: its line. asked: what it asks for.
        number: its execution count.
    """

    shell: InteractiveShell
    session: Session
    mesh: Mesh
    code: str
    parsed: Parsed
    asked: Plan
    number: int

    def run(self, keep: Callable[[ScalingReport], None]) -> None:
        """Run the series, and show it.

        Args:
            keep: is given the report, also of a series that was ended.

        Raises:
            RunInterrupted: somebody has ended it. The rows so far are shown.
        """
        in_place = is_notebook(self.shell)
        with at_waits(), Progress(in_place) as progress:
            self._view = ScalingView(self.shell, has_curve=len(self.asked.sizes) > 1)
            self._progress = progress
            series = Series(self.mesh, self.asked, self._submit, self._wait, self._view.show)
            self._view.show(series.report)
            try:
                series.measure()
            except KernelEnds:
                raise
            except KeyboardInterrupt as interrupt:
                raise RunInterrupted(f"{str(interrupt) or 'interrupted'}{_left_out(series.report)}") from None
            finally:
                self._view.finish(series.report)
                runs = sum(row.time_s is not None for row in series.report.rows)
                progress.done(f"{counted(runs, 'run')} measured in {duration(progress.elapsed_s)}")
                keep(series.report)

    def _submit(self, ranks: tuple[int, ...]) -> Run:
        self._progress(f"size {len(ranks)}")
        self._run_view = self._view_of(ranks)
        self._is_last = len(ranks) == self.asked.sizes[-1]
        on_error = cast("OnError", self.parsed.text("on_error") or "abort")
        try:
            run = self.mesh.select(ranks).submit(
                self.code,
                on_error=on_error,
                cell_number=self.number,
                want_value=bool(self.asked.per),
                sync=False,
                on_breakpoint=on_breakpoint(self.parsed),
                own_world=True,
                listener=self._run_view.on_event,
            )
        except BaseException:
            self._run_view.close()
            raise
        self.session.runs[run.id] = run
        self._run_view.shows(run)
        return run

    def _wait(self, run: Run) -> None:
        try:
            self._follow(run, self._run_view, self.parsed.seconds("timeout"))
        finally:
            if run.done:
                self.session.finished(run)
            self._end_output(run)
        try:
            run.raise_failures()
        except RunFailed as failed:
            self._view.tell(f"on {counted(len(run.ranks), 'rank')}:", RunFailed(failures=failed.failures.values()))
            raise

    def _end_output(self, run: Run) -> None:
        """What a run has printed goes when it is over; it stays when the run failed, and of the last one."""
        if run.done and not run.failures and not self._is_last:
            self._view.output.clear()
            self._run_view.close()
        else:
            self._run_view.close()
            self._view.output.keep()

    def _follow(self, run: Run, view: RunView, timeout_s: float | None) -> None:
        from monarch_nb.client.meshes.scaling import interrupted_after

        answering = Answering(run, SCREEN, on_breakpoint(self.parsed))
        try:
            report = wait_for(run, timeout_s, view.on_event, answering)
        except KernelEnds:
            view.leave("goes on without this kernel: %mesh attach follows it")
            raise
        except RunTimeout:
            raise interrupted_after(run, timeout_s or 0) from None
        if report is not None:
            raise RunInterrupted(str(report))

    def _view_of(self, ranks: tuple[int, ...]) -> RunView:
        return RunView(
            ranks,
            self._view.output.begin(),
            call_later,
            by=checked_fold(self.parsed.text("fold") or "") or self.session.folds_by(len(ranks)),
            group=group_of(self.parsed),
            stream=self.parsed.switch("stream", default=True) and not os.environ.get(NONINTERACTIVE_VARIABLE),
            terminal=not is_notebook(self.shell),
        )


def _left_out(report: ScalingReport) -> str:
    """Return which sizes an interrupt has kept from being run."""
    begun = {row.ranks for row in report.rows}
    left = [str(size) for size in report.sizes if size not in begun]
    return f"; not run on {', '.join(left)} ranks" if left else ""
