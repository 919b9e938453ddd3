"""`%mesh memory`: how much memory ranks use, and which tensors hold it."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.inside import memory_view
from monarch_nb.notebook.output.tables import is_notebook, show
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed


def memory(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Show where the memory of the ranks is."""
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    with Progress(is_notebook(shell)) as progress:
        progress.soon("looking at tensors")
        report = mesh.memory(when_idle=parsed.switch("when_idle"), release_gpus=parsed.switch("release_gpus"))
        progress.done("")
    for view in memory_view(report):
        show(view)
