"""`%%mesh`: a cell's body goes to the ranks, and what they print and return comes back under the cell."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.events import TIME_NOTICE, Event, Finished, Notice
from monarch_nb.client.debug.answering import Answering
from monarch_nb.client.instruments.asked import packed
from monarch_nb.client.instruments.checking import checked
from monarch_nb.config import NONINTERACTIVE_VARIABLE
from monarch_nb.errors import MonarchNbError, PickleError, RankFailure, RunFailed
from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.ground.interrupting import anywhere, at_waits
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.lines.templates import checked_fold
from monarch_nb.notebook.cells.answering import SCREEN, on_breakpoint
from monarch_nb.notebook.cells.following import KernelEnds, RunInterrupted, RunTimeout, wait_for
from monarch_nb.notebook.cells.instruments import CellInstrument, by_name, instruments_of, show_found
from monarch_nb.notebook.cells.resuming import come_back, say_what_is_saved, taken_back
from monarch_nb.notebook.cells.scaling import ScalingCell, asks_for_scaling, plan_of
from monarch_nb.notebook.cells.sent_files import FilesBeforeCells
from monarch_nb.notebook.mode import ANNOUNCE, MeshMode
from monarch_nb.notebook.output import displays
from monarch_nb.notebook.output.publishing import call_later, displaying, printing
from monarch_nb.notebook.output.tables import calm_line, is_notebook, preformatted, show
from monarch_nb.notebook.output.view import RunView
from monarch_nb.notebook.session import Session, mesh_called
from monarch_nb.notebook.syntax.command_line import checked_name, help_text, parse, wants_help
from monarch_nb.notebook.syntax.declarations import CELL
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.pools.facts.infos import RunInfo
    from monarch_nb.client.runs.interrupts.interrupt_report import InterruptReport
    from monarch_nb.client.runs.run import OnError, Run
    from monarch_nb.client.scripts.script import Script
    from monarch_nb.config import OnBreakpoint
    from monarch_nb.lines.templates import FoldBy


Failed = MonarchNbError | RunInterrupted | None
"""What a cell must raise when everything has been shown."""


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
                    say_what_is_saved(self._session, error)
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
        out = checked_name(parsed.text("out"))
        if not code.strip():
            show(calm_line("an empty cell: nothing was run"))
            return
        instruments = instruments_of(parsed)
        mesh = self._session.mesh(parsed.text("targets"), parsed.text("mesh"))
        asked = plan_of(parsed, len(mesh.ranks)) if asks_for_scaling(parsed) else None
        if announced:
            show(calm_line(f"on mesh {mesh_called(mesh)} · {_how_many(mesh)}"))
        if parsed.switch("sync", default=True):
            self._files.before_run(partial(mesh.core.node_names, mesh.ranks))
        if asked is not None:
            cell = ScalingCell(self._shell, self._session, mesh, code, parsed, asked, self._cell_number)
            cell.run(lambda report: self._shell.user_ns.update({out: report} if out else {}))
            return
        by = checked_fold(parsed.text("fold") or "") or self._session.folds_by(len(mesh.ranks))
        shown = self._session.shown_ranks(mesh, parsed.text("show"))
        on_error: OnError = "abort" if parsed.text("on_error") == "abort" else "wait"
        submit = partial(mesh.submit, code, on_error=on_error, want_value=out is not None, sync=False)
        self._execute(
            partial(submit, instruments=by_name(instruments)) if instruments else submit,
            mesh.ranks,
            on_breakpoint=on_breakpoint(parsed),
            noblock=parsed.switch("noblock"),
            timeout_s=parsed.seconds("timeout"),
            out=out,
            by=by,
            group=parsed.text("group_outputs"),
            stream=parsed.switch("stream", default=True),
            shown=shown,
            here=code if parsed.switch("local") else None,
            instruments=instruments,
        )

    def run_code(self, mesh: Mesh, code: str) -> None:
        """Run code of our own as a cell is run, its output here.

        Raises:
            RunFailed, RunInterrupted: as `run`.
        """
        submit = partial(mesh.submit, code, want_value=False, sync=False)
        self._execute(submit, mesh.ranks, by=self._session.folds_by(len(mesh.ranks)))

    def run_script(
        self,
        mesh: Mesh,
        script: Script,
        *,
        noblock: bool,
        timeout_s: float | None,
        out: str | None,
        shown: Collection[int] | None,
        on_breakpoint: OnBreakpoint | None,
        instruments: Sequence[CellInstrument] = (),
    ) -> None:
        """Run a script as a cell is run, its output here.

        Args:
            shown: ranks whose output is shown; None for all.
            on_breakpoint: what `breakpoint()` does in it, if that was said.
            instruments: the script's, of which the cell shows what they found.

        Raises:
            RunFailed, RunInterrupted, RunTimeout: as `run`.
        """
        self._files.before_run(partial(mesh.core.node_names, mesh.ranks))
        script = replace(script, instruments=packed(checked(by_name(instruments), mesh)))
        self._execute(
            partial(mesh.start_script, script, sync=False),
            mesh.ranks,
            noblock=noblock,
            timeout_s=timeout_s,
            out=out,
            by=self._session.folds_by(len(mesh.ranks)),
            shown=self._session.shown_ranks(mesh) if shown is None else shown,
            on_breakpoint=on_breakpoint,
            instruments=instruments,
        )

    def _execute(
        self,
        submit: Callable[..., Run],
        ranks: Sequence[int],
        *,
        noblock: bool = False,
        timeout_s: float | None = None,
        out: str | None = None,
        by: FoldBy | None = None,
        group: str | None = None,
        stream: bool = True,
        shown: Collection[int] | None = None,
        here: str | None = None,
        on_breakpoint: OnBreakpoint | None = None,
        instruments: Sequence[CellInstrument] = (),
    ) -> None:
        """Submit a run, show its output in this cell and wait for it, unless `noblock`; `here` is code for the kernel
        meanwhile."""
        failed: Failed = None
        failed_here: KernelCellFailed | None = None
        with at_waits():  # from here on Ctrl-C is for the ranks, and the cell does not end before they are free
            view = self._view(ranks, by=by, group=group, stream=stream, shown=shown, background=noblock)
            if on_breakpoint is not None:
                submit = partial(submit, on_breakpoint=on_breakpoint)
            run = self._submit(submit, view)
            if noblock:
                self._leave_open(run, view)
            if here is not None:
                with anywhere():
                    failed_here = self._failed_in_kernel(here)
            if not noblock:
                failed = self._wait(run, view, timeout_s, out, on_breakpoint)
        if run.done:
            show_found(instruments, run, in_place=is_notebook(self._shell))
        if not noblock:
            self._finish(run, failed, out)
        elif out is not None:
            self._shell.user_ns[out] = run
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
            RunFailed: the last of those that failed; the others' errors are shown.
            RunInterrupted: a run was interrupted.
        """
        failed: Failed = None
        for info in runs:
            if failed is not None:
                sys.stderr.write("\n".join([*failed._render_traceback_(), ""]))
                failed = None
            show(calm_line(_followed_line(info, from_start)))
            with at_waits():
                failed = self._follow(info, from_start=from_start, block=block)
            if isinstance(failed, RunInterrupted):
                break
        if failed is not None:
            raise failed

    def _follow(self, info: RunInfo, *, from_start: bool, block: bool) -> Failed:
        mesh = self._session.mesh(name=info.mesh or None).select(info.ranks)
        shown = self._session.shown_ranks(mesh)
        by = self._session.folds_by(len(mesh.ranks))
        view = self._view(info.ranks, by=by, shown=shown, background=not block, resumed=not from_start)
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
            return self._wait(run, view, None)
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

    def _wait(
        self,
        run: Run,
        view: RunView,
        timeout_s: float | None,
        out: str | None = None,
        on_breakpoint: OnBreakpoint | None = None,
    ) -> Failed:
        """Wait for a run; return what the cell must raise. A run that goes on sets the variable `out` at its end."""
        try:
            report = wait_for(run, timeout_s, view.on_event, Answering(run, SCREEN, on_breakpoint))
        except RunTimeout:
            self._leave_open(run, view)
            self._keep_later(run, out)
            raise
        except KernelEnds:
            view.leave("goes on without this kernel: %mesh attach follows it")
            view.close()
            raise
        if not run.done:  # interrupted; the rest can not be reached
            self._leave_open(run, view)
            self._keep_later(run, out)
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
            return error
        return None

    def _leave_open(self, run: Run, view: RunView) -> None:
        """The cell returns, and its output goes on by itself."""

        def on_event(event: Event) -> None:
            if isinstance(event, Finished):
                self._session.finished(run)

        view.keep_open()
        run.add_listener(on_event)

    def _view(
        self,
        ranks: Sequence[int],
        *,
        background: bool,
        by: FoldBy | None = None,
        group: str | None = None,
        stream: bool = True,
        shown: Collection[int] | None = None,
        resumed: bool = False,
    ) -> RunView:
        """Return the output of a run in the cell that executes now."""
        terminal = not is_notebook(self._shell)
        view = self._last_view = RunView(
            ranks,
            printing() if terminal else displaying()(),
            call_later,
            by=by,
            group="rank" if group == "rank" else "type" if group == "type" else "order",
            show_failures=background,
            stream=stream and not os.environ.get(NONINTERACTIVE_VARIABLE),
            terminal=terminal,
            shown=shown,
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
        run_cell: Any = self._shell.run_cell  # IPython's has no types
        if run_cell(code, store_history=False, silent=silent).success:
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
