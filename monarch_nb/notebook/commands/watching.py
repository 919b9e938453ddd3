"""`%mesh top`: where every rank is, live in the cell until ■."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.top.table import ALL_WAIT, IDLE, TopTable
from monarch_nb.client.top.terminal import TerminalScreen
from monarch_nb.client.top.tops import follow
from monarch_nb.errors import UsageError
from monarch_nb.notebook.output.html.top import top_markup
from monarch_nb.notebook.output.tables import Shown, is_notebook, show, show_updatable
from monarch_nb.notebook.panels.showing import Panels
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed


def top(session: Session, shell: InteractiveShell, panels: Panels, parsed: Parsed) -> None:
    """Show where ranks are, until Ctrl-C, for some time, or once: also where a program runs the notebook, which would
    wait for ever.

    Raises:
        UsageError: both --once and --for are given.
    """
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    for_s = parsed.seconds("for")
    if parsed.switch("once") and for_s is not None:
        raise UsageError("say one of --once and --for")
    if parsed.switch("once") or (for_s is None and is_notebook(shell) and not panels.is_attended):
        show(top_view(mesh.top()))
        return
    until_s = time.monotonic() + for_s if for_s is not None else None
    screen = _Screen(is_updated=is_notebook(shell))
    with contextlib.suppress(KeyboardInterrupt):
        for found in follow(mesh.core, mesh.ranks):
            screen.show(top_view(found))
            if until_s is not None and time.monotonic() >= until_s:
                return


def top_view(found: TopTable) -> Shown:
    """Return the table of ranks, with who is waited for above it."""
    hints = {
        IDLE: "start a cell with --noblock, or in another notebook",
        ALL_WAIT: "%mesh stacks shows where",
    }
    notes = [hints[found.sentence]] if found.sentence in hints else []
    return Shown("\n".join([str(found), *notes]), top_markup(found, notes))


class _Screen:
    """Where the table is shown: a display of a cell that is replaced, or lines of a terminal.

    Args:
        is_updated: displays can be replaced.
    """

    def __init__(self, *, is_updated: bool) -> None:
        self._terminal = None if is_updated else TerminalScreen()
        self._handle: Any = None

    def show(self, shown: Shown) -> None:
        """Show it in the place of what was shown before."""
        if self._terminal is not None:
            self._terminal.show(shown.plain)
        elif self._handle is None:
            self._handle = show_updatable(shown)
        else:
            self._handle.update(shown)
