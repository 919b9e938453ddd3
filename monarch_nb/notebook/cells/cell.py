"""`%%mesh`: a cell's body goes to the ranks, and what they print and return comes back under the cell."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.events import TIME_NOTICE, Event, Finished, Notice
from monarch_nb.client.debug.answering import Answering
from monarch_nb.client.instruments.asked import checked, packed
from monarch_nb.config import NONINTERACTIVE_VARIABLE
from monarch_nb.errors import MonarchNbError, PickleError, RankFailure, RunFailed
from monarch_nb.ground.code_names import mesh_flag, run_name
from monarch_nb.ground.interrupting import anywhere, at_waits
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.lines.templates import checked_fold
from monarch_nb.notebook.cells.following import SCREEN, KernelEnds, RunInterrupted, RunTimeout, on_breakpoint, wait_for
from monarch_nb.notebook.cells.instruments import CellInstrument, by_name, instruments_of, show_found
from monarch_nb.notebook.cells.resuming import come_back, taken_back
from monarch_nb.notebook.cells.scaling import ScalingCell, asks_for_scaling, group_of, plan_of
from monarch_nb.notebook.cells.sent_files import FilesBeforeCells
from monarch_nb.notebook.cells.unknown_names import known_elsewhere
from monarch_nb.notebook.mode import ANNOUNCE, MeshMode
from monarch_nb.notebook.output import displays
from monarch_nb.notebook.output.publishing import call_later, displaying, printing
from monarch_nb.notebook.output.tables import calm_line, is_notebook, preformatted, show
from monarch_nb.notebook.output.view import RunView
from monarch_nb.notebook.session import Session, is_own, mesh_called
from monarch_nb.notebook.syntax.command_line import Parsed, checked_name, help_text, parse, wants_help
from monarch_nb.notebook.syntax.declarations import CELL
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.infos import RunInfo
    from monarch_nb.client.runs.interrupting import InterruptReport
    from monarch_nb.client.runs.run import OnError, Run
    from monarch_nb.client.scripts.script import Script
    from monarch_nb.config import OnBreakpoint
    from monarch_nb.lines.templates import FoldBy
    from monarch_nb.notebook.output.render import Group


Failed = MonarchNbError | RunInterrupted | None
"""What a cell must raise when everything has been shown."""


@dataclass(frozen=True)
class HowShown:
    """How a cell waits for a run, and shows it.

    Attributes:
        noblock: it does not wait. timeout_s: so long at most.
        out: the variable for the values, or with `noblock` for the run.
        by: in what lines of one row may differ. group, stream: as RunView has them.
        shown: ranks whose output is shown; None for all.
        on_breakpoint: what `breakpoint()` does in it, if that was said.
        instruments: the run's, of which the cell shows what they found.
        here: code for the kernel meanwhile.
        of_others: the run as it is known, when it is none of this notebook's: that it failed is no failure here.
        from_start: all of it is shown.
    """

    noblock: bool = False
    timeout_s: float | None = None
    out: str | None = None
    by: FoldBy | None = None
    group: Group = "order"
    stream: bool = True
    shown: Collection[int] | None = None
    on_breakpoint: OnBreakpoint | None = None
    instruments: Sequence[CellInstrument] = ()
    here: str | None = None
    of_others: RunInfo | None = None
    from_start: bool = False

    @classmethod
    def of(cls, parsed: Parsed) -> HowShown:
        """Return what a line says.

        Raises:
            UsageError: it makes no sense.
        """
        return cls(
            parsed.switch("noblock"),
            parsed.seconds("timeout"),
            checked_name(parsed.text("out")),
            group=group_of(parsed),
            stream=parsed.switch("stream", default=True),
            on_breakpoint=on_breakpoint(parsed),
            instruments=instruments_of(parsed),
        )


_STOPPED = {"interrupted": "interrupted", "cancelled": "never ran"}
"""What became of ranks that did not fail by themselves, by the kind of their failure."""


class KernelCellFailed(MonarchNbError):
    """A cell failed in the kernel, which has shown its traceback already."""


class CellRunner:
    """Runs cells on the current mesh and follows runs of earlier kernels."""

    def __init__(self, shell: InteractiveShell, session: Session, mode: MeshMode) -> None:
        self._shell, self._session, self._mode = shell, session, mode
        self._files = FilesBeforeCells(shell, session)
        self._views: WeakValueDictionary[str, RunView] = WeakValueDictionary()  # by run: where its output arrives
        self._last_view: RunView | None = None
        self._time_view: RunView | None = None  # below which the time was spoken of
        self._raised = ""  # because of which a run ended
        self._in_place: Path | None = None  # the script that ran last in the ranks' own namespace
        session.show_time = self._show_time

    def run(self, line: str, code: str) -> None:
        """Do what a `%%mesh` cell says; again, where it was said so, on new nodes when the engine took the old ones.

        Raises:
            SetupFailed, SaveError: it could not come back to where it was.
            UsageError, RunFailed, RunInterrupted, RunTimeout: as `_run`.
        """
        while True:
            try:
                self._run(line, code)
                return
            except MonarchNbError as error:
                plan = self._session.resume
                if plan is None or not (why := taken_back(self._session, error)):
                    raise
                come_back(self._shell, self._session, plan, why)

    def _run(self, line: str, code: str) -> None:
        """Do what a `%%mesh` cell says.

        Raises:
            UsageError: the line can not be read, or nothing is held.
            RunFailed: the cell failed on some ranks.
            RunInterrupted: it was interrupted.
            RunTimeout: it goes on after `--timeout`.
        """
        announced = line.lstrip().startswith(ANNOUNCE)
        line = line.lstrip().removeprefix(ANNOUNCE)
        if wants_help(CELL, line):
            show(preformatted(help_text(CELL)))
            return
        if announced and not self._mode.visible:
            self.run_in_kernel(code, silent=True)
            return
        parsed = parse(CELL, line)
        if not code.strip():
            show(calm_line("an empty cell: nothing was run"))
            return
        how = HowShown.of(parsed)
        mesh = self._session.mesh(parsed.text("targets"), parsed.text("mesh"))
        asked = plan_of(parsed, len(mesh.ranks)) if asks_for_scaling(parsed) else None
        if announced:
            show(calm_line(f"on mesh {mesh_called(mesh)} · {_how_many(mesh)}"))
        if parsed.switch("sync", default=True):
            self._files.before_run(partial(mesh.core.node_names, mesh.ranks))
        if asked is not None:
            cell = ScalingCell(self._shell, self._session, mesh, code, parsed, asked, self._cell_number)
            cell.run(lambda report: self._shell.user_ns.update({how.out: report} if how.out else {}))
            return
        how = replace(
            how,
            by=checked_fold(parsed.text("fold") or "") or self._session.folds_by(len(mesh.ranks)),
            shown=self._session.shown_ranks(mesh, parsed.text("show")),
            here=code if parsed.switch("local") else None,
        )
        on_error = cast("OnError", parsed.text("on_error") or "free")
        submit = partial(mesh.submit, code, on_error=on_error, want_value=how.out is not None, sync=False)
        if how.instruments:
            submit = partial(submit, instruments=by_name(how.instruments))
        self._execute(submit, mesh.ranks, how)

    def run_code(self, mesh: Mesh, code: str) -> None:
        """Run code of our own as a cell is run, its output here.

        Raises:
            RunFailed, RunInterrupted: as `run`.
        """
        submit = partial(mesh.submit, code, want_value=False, sync=False)
        self._execute(submit, mesh.ranks, HowShown(by=self._session.folds_by(len(mesh.ranks))))

    def run_script(self, mesh: Mesh, script: Script, how: HowShown) -> None:
        """Run a script as a cell is run, its output here.

        Raises:
            RunFailed, RunInterrupted, RunTimeout: as `run`.
        """
        self._files.before_run(partial(mesh.core.node_names, mesh.ranks))
        if script.in_place and script.is_file:
            self._in_place = Path(self._session.directory, script.place)
        script = replace(script, instruments=packed(checked(by_name(how.instruments), mesh.ranks)))
        shown = self._session.shown_ranks(mesh) if how.shown is None else how.shown
        how = replace(how, by=self._session.folds_by(len(mesh.ranks)), shown=shown)
        self._execute(partial(mesh.start_script, script, sync=False), mesh.ranks, how)

    def _execute(self, submit: Callable[..., Run], ranks: Sequence[int], how: HowShown) -> None:
        """Submit a run, show its output in this cell, and wait for it."""
        failed: Failed = None
        failed_here: KernelCellFailed | None = None
        with at_waits():  # from here on Ctrl-C is for the ranks, and the cell does not end before they are free
            view = self._view(ranks, how, background=how.noblock)
            if how.on_breakpoint is not None:
                submit = partial(submit, on_breakpoint=how.on_breakpoint)
            run = self._submit(submit, view)
            if how.noblock:
                self._leave_open(run, view)
            if how.here is not None:
                with anywhere():
                    failed_here = self._failed_in_kernel(how.here)
            if not how.noblock:
                failed = self._wait(run, view, how)
        if run.done:
            show_found(how.instruments, run, in_place=is_notebook(self._shell))
        if not how.noblock:
            self._finish(run, failed, how.out)
        elif how.out is not None:
            self._shell.user_ns[how.out] = run
        if failed_here is not None:
            raise failed_here

    def run_in_kernel(self, code: str, silent: bool = False) -> None:
        """Run a cell in the kernel.

        Raises:
            KernelCellFailed: it failed there.
        """
        if (failed := self._failed_in_kernel(code, silent)) is not None:
            raise failed

    def follow(self, runs: Sequence[RunInfo], *, from_start: bool, block: bool) -> None:
        """Follow runs of the current reservation, one after the other.

        Raises:
            RunFailed: the last of this notebook's runs that failed; the others' errors are shown.
            RunInterrupted: a run was interrupted.
        """
        failed: Failed = None
        for info in runs:
            if failed is not None:
                sys.stderr.write("\n".join([*failed._render_traceback_(), ""]))
                failed = None
            show(calm_line(_followed_line(info, from_start)))
            if block and not info.done and not is_own(info, self._session.notebook) and self._may_stop(info):
                show(calm_line("■ interrupts the run; %mesh attach --noblock only follows it"))
            with at_waits():
                failed = self._follow(info, from_start=from_start, block=block)
            if isinstance(failed, RunInterrupted):
                break
        if failed is not None:
            raise failed

    def _may_stop(self, info: RunInfo) -> bool:
        """Return whether an interrupt stops a run: of somebody else's mesh it stops our runs alone."""
        return not info.owner or self._session.current().is_mine

    def _follow(self, info: RunInfo, *, from_start: bool, block: bool) -> Failed:
        mesh = self._session.mesh(name=info.mesh or None).select(info.ranks)
        how = HowShown(
            by=self._session.folds_by(len(mesh.ranks)),
            shown=self._session.shown_ranks(mesh),
            of_others=None if is_own(info, self._session.notebook) else info,
            from_start=from_start,
        )
        view = self._view(info.ranks, how, background=not block, resumed=not from_start)
        run = self._session.runs.get(info.run_id)
        if run is not None and run.refusal:
            run = None  # it was shared no longer, and is again
        before = self._views.get(info.run_id)
        if run is not None and before is not None:
            run.replace_listener(before.on_event, None if from_start else view.on_event)
            before.leave(f"goes on in cell [{self._cell_number}]")
        if run is None or before is None or from_start:
            run = self._session.mesh(name=info.mesh or None).attach_run(
                info.run_id, from_start=from_start, listener=view.on_event
            )
        view.hosts = run.mesh.core.hosts(run.ranks)
        self._session.runs[run.id] = run
        self._views[run.id] = view
        view.shows(run)
        if block:
            return self._wait(run, view, how)
        self._leave_open(run, view)
        return None

    def _submit(self, submit: Callable[..., Run], view: RunView) -> Run:
        try:
            run = submit(cell_number=self._cell_number, listener=view.on_event)
        except BaseException:
            view.close()  # else it would go on to tell how long the run takes
            raise
        view.hosts = run.mesh.core.hosts(run.ranks)
        self._session.runs[run.id] = run
        self._views[run.id] = view
        return run

    @property
    def _cell_number(self) -> int:
        number: int = self._shell.displayhook.prompt_count  # of this cell, whenever IPython counts it
        return number

    def _finish(self, run: Run, failed: Failed, out: str | None) -> None:
        """Keep the values of a run that is over; raise what it failed with."""
        if isinstance(failed, RunFailed):
            failed.remedy = known_elsewhere(failed, self._shell, self._in_place)
        if out is not None and run.done:
            self._shell.user_ns[out] = run.kept_values
            try:
                _ = run.values
            except PickleError as error:
                failed = failed or others_kept(error, out, run.kept_values)
            if isinstance(failed, RunFailed):
                failed.kept_in = out
        if failed is not None:
            raise failed

    def _keep_later(self, run: Run, out: str | None) -> None:
        """Set the variable when the run, which goes on, has ended."""
        if out is None:
            return

        def keep() -> None:
            self._shell.user_ns[out] = run.kept_values

        def on_event(event: Event) -> None:
            if isinstance(event, Finished):  # values may take long to unpickle: not on the background loop
                threading.Thread(target=keep, name="monarch_nb keeps values", daemon=True).start()

        run.add_listener(on_event)

    def _wait(self, run: Run, view: RunView, how: HowShown) -> Failed:
        """Wait for a run; return what the cell must raise. A run that goes on sets the variable at its end."""
        try:
            report = wait_for(run, how.timeout_s, view.on_event, Answering(run, SCREEN, how.on_breakpoint))
        except RunTimeout:
            self._leave_open(run, view)
            self._keep_later(run, how.out)
            raise
        except KernelEnds:
            view.leave("goes on without this kernel: %mesh attach follows it")
            view.close()
            raise
        if not run.done:  # interrupted; the rest can not be reached
            self._leave_open(run, view)
            self._keep_later(run, how.out)
            return RunInterrupted(str(report))
        if run.refusal is not None:  # the cell raises it: it is not told twice
            self._raised = str(run.refusal)
            view.on_event(Notice("", key=TIME_NOTICE))
        view.close()
        self._session.finished(run)
        if report is not None and run.failures and not any(_is_own(failure, report) for failure in run.failures):
            return RunInterrupted(str(report))
        try:
            run.raise_failures()
        except MonarchNbError as error:
            if how.of_others is None or report is not None or not isinstance(error, RunFailed):
                return error
            if how.from_start:
                sys.stderr.write("\n".join([*error._render_traceback_(), ""]))
            show(calm_line(_ended_line(how.of_others, error)))
        return None

    def _leave_open(self, run: Run, view: RunView) -> None:
        """The cell returns, and its output goes on by itself."""

        def on_event(event: Event) -> None:
            if isinstance(event, Finished):
                self._session.finished(run)

        view.keep_open()
        run.add_listener(on_event)

    def _view(self, ranks: Sequence[int], how: HowShown, *, background: bool, resumed: bool = False) -> RunView:
        """Return the output of a run in the cell that executes now."""
        terminal = not is_notebook(self._shell)
        view = self._last_view = RunView(
            ranks,
            printing() if terminal else displaying()(),
            call_later,
            by=how.by,
            group=how.group,
            show_failures=background,
            stream=how.stream and not os.environ.get(NONINTERACTIVE_VARIABLE),
            terminal=terminal,
            shown=how.shown,
            resumed=resumed,
            cell=displays.executing_cell(),
        )
        return view

    def _show_time(self, text: str) -> bool:
        """Say below the last cell that the time of the reservation is nearly up, if that cell can show it."""
        if text and text == self._raised:
            return True
        if self._time_view is not None:
            self._time_view.on_event(Notice("", key=TIME_NOTICE))  # a cell has run since
        view = self._time_view = self._last_view
        if view is None or not view.can_add:
            return False
        view.on_event(Notice(text, key=TIME_NOTICE))
        return True

    def _failed_in_kernel(self, code: str, silent: bool = False) -> KernelCellFailed | None:
        if self._shell.run_cell(code, store_history=False, silent=silent).success:
            return None
        return KernelCellFailed("the cell failed in the kernel (its traceback is above)")


def others_kept(error: PickleError, out: str, kept: list[Any]) -> PickleError:
    """Return the error that also says what of `kept`, which is the variable `out`, could be brought."""
    some = not all(isinstance(value, PickleError) for value in kept)
    held = "the other ranks' values, and an error for each of these" if some else "an error in place of each value"
    return PickleError(f"{error}\n{out} has {held}", error.name, error.ranks)


def _is_own(failure: RankFailure, report: InterruptReport) -> bool:
    """Whether a rank failed by itself, not by the interrupt."""
    return failure.kind not in ("interrupted", "cancelled") and failure.rank not in report.restarted


def _how_many(mesh: Mesh) -> str:
    if len(mesh.ranks) < mesh.extent.size:
        return name_ranks(mesh.ranks)
    return counted(len(mesh.ranks), "rank")


def _followed_line(info: RunInfo, from_start: bool) -> str:
    ago = duration(max(0.0, time.time() - info.submitted_at))
    again = f"%mesh attach{mesh_flag(info.mesh)} --run {info.number}"
    earlier = "" if from_start else f"; without what was shown before: {again} shows all of it"
    return f"{info} · {name_ranks(info.ranks)} · submitted {ago} ago{' · finished' if info.done else ''}{earlier}"


def _ended_line(info: RunInfo, failed: RunFailed) -> str:
    """Return how a run of another notebook ended, which failed there."""
    name = run_name(
        info.number, info.cell_number, info.title, os.path.basename(info.notebook), owner=info.owner, mesh=info.mesh
    )
    ends = [f"{name_ranks(ranks)}: {_STOPPED.get(failure.kind, failure.line)}" for ranks, failure in failed.groups()]
    logs = f"%mesh logs{mesh_flag(info.mesh)} --run {info.number}"
    has_traceback = any(failure.kind == "error" for failure in failed.failures.values())
    return f"{name} ended: {'; '.join(ends)}{f'. {logs} shows the traceback' if has_traceback else ''}"
