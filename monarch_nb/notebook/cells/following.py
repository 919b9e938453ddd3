"""A cell that waits for a run: Ctrl-C goes to the ranks, a timeout leaves them alone, and ranks that stop at
breakpoints open the debugger's prompt.
"""

from __future__ import annotations

import builtins
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.events import Notice
from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.console import Console, Left
from monarch_nb.client.debug.debugger import HEADERS, Debugger, StopInfo, stops_rows, stops_table
from monarch_nb.client.runs.interrupting import InterruptReport, handled_by, left_by_kernel
from monarch_nb.config import OnBreakpoint, cadence
from monarch_nb.ground.callers import end_at_caller
from monarch_nb.ground.interrupting import at_waits, kernel_ends
from monarch_nb.ground.printing import put
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.notebook.output.tables import Shown, calm_line, show, table
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run


def takes_input(shell: InteractiveShell) -> bool:
    """Return whether whoever executes the cell can type: headless clients say that nobody can."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return sys.stdin is not None and sys.stdin.isatty()
    return bool(getattr(kernel, "_allow_stdin", False))


def on_breakpoint(parsed: Parsed) -> OnBreakpoint | None:
    """Return what a line says that breakpoints do; None when it says nothing."""
    choices: tuple[OnBreakpoint, ...] = get_args(OnBreakpoint)
    return next((choice for choice in choices if choice == parsed.text("on_breakpoint")), None)


def prompt(mesh: Mesh) -> Left:
    """Open the debugger's prompt in the cell that executes now."""
    return Console(Debugger(mesh), builtins.input, put, _show_table).run()


SCREEN = Screen(
    prompt,
    lambda text: show(calm_line(text)),
    "this cell waits for {them}: monarch-nb debug {name} in a terminal, or %mesh debug in another notebook, opens the "
    "debugger again; ■ interrupts {them}",
)
"""The cell that waits."""


def _show_table(stops: Sequence[StopInfo]) -> None:
    show(Shown(stops_table(stops), table("", HEADERS, stops_rows(stops)).html))


class RunInterrupted(KeyboardInterrupt):
    """The cell was interrupted; the text says what that did."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        end_at_caller(self.__traceback__)
        return [f"\x1b[31mKeyboardInterrupt\x1b[39m: {self}"]


class KernelEnds(RunInterrupted):
    """Jupyter ends the kernel, and interrupted it before; the run goes on."""


class RunTimeout(TimeoutError):
    """The cell waited as long as `--timeout` said; the run goes on."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        end_at_caller(self.__traceback__)
        return [f"\x1b[31mTimeoutError\x1b[39m: {self}"]


def wait_for(
    run: Run, timeout_s: float | None, notify: Callable[[Notice], None], answer: Callable[[], None]
) -> InterruptReport | None:
    """Wait until every rank has finished `run`.

    The first Ctrl-C interrupts the ranks, and the wait goes on; once it is said that some hang, another one in the next
    10 s kills those and forks them anew. Then it does not wait for ranks that can not be reached. A Ctrl-C that Jupyter
    sends before it ends the kernel does nothing to them.

    Args:
        timeout_s: how long to wait; None for as long as it takes.
        notify: shows in the cell what the interrupt has done so far.
        answer: called when ranks have stopped at breakpoints.

    Returns:
        What the interrupts did; None when there was none.

    Raises:
        RunTimeout: it goes on.
        KernelEnds: it goes on, and this kernel does not.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    report: InterruptReport | None = None
    is_asked = False
    with at_waits():
        while True:
            try:
                if is_asked:
                    is_asked = False  # before the call, so that a Ctrl-C during it counts as the next one
                    if report is None:
                        report = InterruptReport(free=tuple(sorted(run.results.keys() | run.finished_before)))
                    report = report.then(_interrupt(run, notify))
                wait = run.wait_news if report is None else run.wait_freed
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                is_news = wait(left_s)
                if is_news and (report is not None or run.done):
                    if report is not None:
                        report = report.as_of(run.results)
                        notify(Notice("", key="stuck"))
                        notify(Notice(handled_by(report.stopped) if run.ended_well else "", key="interrupt"))
                    return report
                if is_news and left_s != 0.0:
                    run.stops.take_news()
                    answer()
                    continue
                raise RunTimeout(
                    f"not finished after {duration(timeout_s or 0)}; the run goes on, and its output keeps arriving "
                    "here. %mesh attach follows it, %mesh interrupt stops it"
                )
            except KeyboardInterrupt:
                if kernel_ends():
                    raise KernelEnds(left_by_kernel(run.name)) from None
                is_asked = True


def _interrupt(run: Run, notify: Callable[[Notice], None]) -> InterruptReport:
    # Most ranks stop at once: only when they do not, the cell says that something goes on.
    timer = threading.Timer(cadence(0.5), notify, [Notice("interrupting…", key="interrupt")])
    timer.daemon = True
    timer.start()
    try:
        report = run.interrupt(kill_stuck=run.may_kill)  # only what the cell has just said of
    finally:
        timer.cancel()
    # Who did not stop, and where it hangs, is a notice of the run itself.
    partly = report.stopped and (report.stuck or report.handling)
    notify(Notice(f"{name_ranks(report.stopped)} stopped" if partly else "", key="interrupt"))
    return report
