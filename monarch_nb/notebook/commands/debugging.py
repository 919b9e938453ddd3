"""`%mesh debug`: the debugger's prompt in a cell of its own."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.debug.stops import stops_table
from monarch_nb.client.runs.stops import choose
from monarch_nb.config import OnBreakpoint
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.notebook.cells.answering import on_breakpoint, prompt, takes_input
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.output.tables import calm_line, preformatted, show
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed

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
        show(calm_line(f"no error to look at: the last run on {name_ranks(mesh.ranks)} did not fail"))
        return
    try:
        if not takes_input(shell):
            show(preformatted(stops_table(debugger.stops())))
            show(calm_line("nobody can type here: monarch-nb debug NAME in a terminal answers"))
        elif prompt(mesh) == "nothing stopped":
            show(calm_line("no rank has stopped at a breakpoint"))
    except KeyboardInterrupt:
        raise RunInterrupted("left the debugger; stopped ranks stay where they are") from None
    finally:
        if post_mortem:
            debugger.leave_errors()
