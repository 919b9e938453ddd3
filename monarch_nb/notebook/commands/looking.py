"""`%mesh fold`, `show`, `top`, `diff`, `memory` and `debug`: what people look at."""

from __future__ import annotations

import contextlib
import difflib
import math
import time
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.debug.debugger import Debugger, stops_table
from monarch_nb.client.instruments.top import TerminalScreen, follow
from monarch_nb.client.instruments.top_table import ALL_WAIT, IDLE, TopTable
from monarch_nb.client.runs.results import choose
from monarch_nb.config import OnBreakpoint
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.lines.templates import FOLDS_BY, checked_fold
from monarch_nb.notebook.cells.following import RunInterrupted, on_breakpoint, prompt, takes_input
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.html.top import top_markup
from monarch_nb.notebook.output.inside import memory_view
from monarch_nb.notebook.output.tables import Shown, calm_line, is_notebook, preformatted, show, show_updatable, table
from monarch_nb.notebook.panels.showing import Panels
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed

_FOLDED = {
    "numbers": "lines that differ only in numbers are one row",
    "times": "lines that differ only in dates and times of day are one row",
    "equal": "lines that are equal are one row",
    "off": "each rank's line is a row of its own",
}


def fold(session: Session, parsed: Parsed) -> None:
    """Choose in what lines of one row may differ, and say what is in force.

    Raises:
        UsageError: nothing is held, or there is no such way.
    """
    mesh = session.mesh()
    if parsed.word is not None:
        by = checked_fold(parsed.word)
        if by is None and parsed.word != "default":
            nearest = difflib.get_close_matches(parsed.word, [*FOLDS_BY, "default"], n=1)
            meant = f"; did you mean {nearest[0]}?" if nearest else ""
            raise UsageError(f"lines fold by {', '.join(FOLDS_BY)} or default, not {parsed.word!r}{meant}")
        session.look(fold=by or "default")
    chosen = "" if session.fold else " (the default here)"
    show(calm_line(f"{_FOLDED[session.folds_by(len(mesh.ranks))]}{chosen}"))


def show_ranks(session: Session, parsed: Parsed) -> None:
    """Choose whose output is shown, and say what is in force.

    Raises:
        UsageError: nothing is held.
        TargetError: the ranks can not be read, or the mesh does not have them.
    """
    mesh = session.mesh()
    if parsed.word is not None:
        session.shown_ranks(mesh, parsed.word)
        session.look(show=parsed.word)
    ranks = session.shown_ranks(mesh)
    whose = "all ranks" if ranks is None else name_ranks(ranks)
    back = "" if ranks is None else "; %mesh show all shows every rank's again"
    show(calm_line(f"cells show the output of {whose}{back}"))


def top(session: Session, shell: InteractiveShell, panels: Panels, parsed: Parsed) -> None:
    """Show where ranks are, until nothing runs or Ctrl-C, for some time, or once: also where a program runs the
    notebook, which would wait as long as they run.

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
    until_s = time.monotonic() + for_s if for_s is not None else math.inf
    screen = _Screen(is_updated=is_notebook(shell))
    with contextlib.suppress(KeyboardInterrupt):
        for found in follow(mesh.core, mesh.ranks):
            screen.show(top_view(found))
            if time.monotonic() >= until_s or (found.is_idle and for_s is None):  # none of this kernel can begin now
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


def diff(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Compare what the ranks have, and show what differs.

    Raises:
        UsageError: nothing is to be compared, or ranks compute now.
        RunFailed: the expression fails on some ranks.
    """
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    expression = parsed.words[0] if parsed.words else ""
    with Progress(is_notebook(shell)) as progress:
        progress.soon(f"comparing {expression or 'ranks'}")
        report = mesh.diff(
            expression,
            over=parsed.text("over") or "",
            rng=parsed.switch("rng"),
            env=parsed.switch("env"),
            when_idle=parsed.switch("when_idle"),
        )
        progress.done(report.title)
    if not report.equal or report.notes():
        show(table("", ["name", "what ranks have"], report.rows(), report.notes()))


def memory(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Show where the memory of the ranks is."""
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    with Progress(is_notebook(shell)) as progress:
        progress.soon("looking at tensors")
        report = mesh.memory(when_idle=parsed.switch("when_idle"), release_gpus=parsed.switch("release_gpus"))
        progress.done("")
    for view in memory_view(report):
        show(view)


_CHOSEN: dict[OnBreakpoint, str] = {
    "stop": "from now on breakpoint() stops; where nobody can type, monarch-nb debug answers",
    "go-on": "from now on breakpoint() is passed",
    "error": "from now on breakpoint() fails",
}


def debug(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Answer what has stopped, or enter the last errors, until whoever types leaves.

    Raises:
        RunInterrupted: Ctrl-C at the prompt.
    """
    if (chosen := on_breakpoint(parsed)) is not None:
        choose(chosen)
        show(calm_line(_CHOSEN[chosen]))
        return
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    debugger, post_mortem = Debugger(mesh), parsed.switch("post_mortem")
    if post_mortem and not debugger.enter_errors():
        show(calm_line(debugger.why_no_error()))
        return
    try:
        if not takes_input(shell):
            show(preformatted(stops_table(debugger.stops())))
            show(calm_line("nobody can type here: monarch-nb debug NAME in a terminal answers"))
        elif prompt(mesh) == "nothing stopped":
            show(calm_line("no rank has stopped: breakpoint() in a cell or a script stops the ranks that reach it"))
    except KeyboardInterrupt:
        raise RunInterrupted("left the debugger; stopped ranks stay where they are") from None
    finally:
        if post_mortem:
            debugger.leave_errors()
