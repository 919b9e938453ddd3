"""`%mesh diff`: which ranks have another value than the rest."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.tables import is_notebook, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed


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
