"""Ranks that have stopped at breakpoints: the prompt in the cell that waits for them, and in that of `%mesh debug`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.events import Notice
from monarch_nb.client.debug.console import Console, Left
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.debug.stops import HEADERS, StopInfo, stops_rows, stops_table
from monarch_nb.client.runs.interrupt_report import left_by_kernel
from monarch_nb.ground.interrupting import anywhere, kernel_ends
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.notebook.cells.following import KernelEnds
from monarch_nb.notebook.output.tables import Shown, calm_line, show, table

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh
    from monarch_nb.client.runs.run import Run
    from monarch_nb.client.runs.stops import OnBreakpoint

SETTLE_S = 0.3
"""Ranks that stop at the same time are in the same table."""


def takes_input(shell: InteractiveShell) -> bool:
    """Return whether whoever executes the cell can type: headless clients say that nobody can."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return sys.stdin is not None and sys.stdin.isatty()
    return bool(getattr(kernel, "_allow_stdin", False))


def prompt(mesh: HeldMesh) -> Left:
    """Open the debugger's prompt in the cell that executes now."""
    return Console(Debugger(mesh), builtins.input, _print, _show_table).run()


def _show_table(stops: Sequence[StopInfo]) -> None:
    show(Shown(stops_table(stops), table("", HEADERS, stops_rows(stops)).html))


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class Answering:
    """Answers what a run asks while its cell waits.

    Args:
        can_type: returns whether anybody can.
        run: the run.
        notify: shows a line below the run's output.
        chosen: what the cell's line says that breakpoints do.
    """

    def __init__(
        self,
        can_type: Callable[[], bool],
        run: Run,
        notify: Callable[[Notice], None],
        chosen: OnBreakpoint | None = None,
    ) -> None:
        self._can_type, self._run, self._notify, self._chosen = can_type, run, notify, chosen
        self._debugger = Debugger(run.mesh)
        self._left: set[tuple[int, int]] = set()

    def __call__(self) -> None:
        """Ranks have stopped: let people answer, who may leave the prompt for good.

        Raises:
            KernelEnds: Jupyter ends the kernel at the prompt.
        """
        if self._run.wait(SETTLE_S):
            return
        stops = {(stop.rank, stop.number) for stop in self._debugger.stops()}
        if not stops or stops & self._left:
            return
        if not self._can_type():
            if self._chosen != "stop":
                self._pass()
            return
        try:
            with anywhere():
                left = prompt(self._run.mesh)
        except KeyboardInterrupt:
            if kernel_ends():
                raise KernelEnds(left_by_kernel(self._run.name)) from None
            left = "quit"
        if left == "quit":
            self._leave()

    def _pass(self) -> None:
        """Nobody can answer: this run must not wait for ever."""
        stops = self._debugger.continue_all(self._run.id)
        places = ", ".join(sorted({stop.place for stop in stops}))
        if places:
            self._notify(Notice(f"breakpoint() at {places} passed: nobody can answer here", key="passed"))

    def _leave(self) -> None:
        stops = self._debugger.stops()
        self._left = {(stop.rank, stop.number) for stop in stops}
        if stops:
            name = self._run.mesh.reservation.name
            show(
                calm_line(
                    f"{name_ranks({stop.rank for stop in stops})} stay where they are, and this cell waits for them: "
                    f"monarch-nb debug {name} in a terminal, or %mesh debug in another notebook, opens the debugger "
                    "again; ■ interrupts them"
                )
            )
