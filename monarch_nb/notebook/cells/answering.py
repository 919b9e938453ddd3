"""The debugger's prompt in a cell: in the one that waits for ranks that have stopped, and in that of `%mesh debug`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.console import Console, Left
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.debug.stops import HEADERS, StopInfo, stops_rows, stops_table
from monarch_nb.config import OnBreakpoint
from monarch_nb.ground.printing import put
from monarch_nb.notebook.output.tables import Shown, calm_line, show, table
from monarch_nb.notebook.syntax.command_line import Parsed

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh


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


def prompt(mesh: HeldMesh) -> Left:
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
