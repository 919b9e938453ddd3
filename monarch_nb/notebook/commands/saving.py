"""`%mesh save`, `load` and `saves`."""

from __future__ import annotations

from datetime import datetime

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.saving.saves import SaveInfo
from monarch_nb.notebook.cells.late_progress import LateProgress
from monarch_nb.notebook.output.tables import calm_line, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.sizes import size
from monarch_nb.worker.saving.asked import KEPT_SAVES


def save(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Save, and say what was saved and what not.

    Raises:
        SaveError: see Mesh.save.
    """
    directory, *names = parsed.words
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    with LateProgress(shell) as progress:
        report = mesh.save(
            directory,
            names,
            keep=parsed.count("keep") or KEPT_SAVES,
            background=parsed.switch("async"),
            bring=parsed.switch("bring"),
            cell_number=_cell_number(shell),
            progress=lambda done, total: progress(f"rank {mesh.ranks[0]} saves", done, total),
        )
        progress.done(str(report))


def load(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Load, and say what was loaded and what not.

    Raises:
        SaveError: see Mesh.load.
    """
    names = [name for name in (parsed.text("only") or "").replace(",", " ").split() if name]
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    report = mesh.load(
        parsed.words[0],
        names,
        strict=parsed.switch("strict"),
        bring=parsed.switch("bring"),
        cell_number=_cell_number(shell),
    )
    show(calm_line(str(report)))


def list_saves(session: Session, parsed: Parsed) -> None:
    """Show the saves of a directory."""
    directory = parsed.word or "checkpoints"
    found = session.mesh(name=parsed.text("mesh")).saves(directory)
    headers = ("save", "when", "of", "ranks", "size", "names")
    title = f"{directory}: {len(found)} save{'s' if len(found) != 1 else ''}"
    show(table(title, headers, [_row(info) for info in found]))


def _cell_number(shell: InteractiveShell) -> int:
    number: int = shell.displayhook.prompt_count  # of this cell, whenever IPython counts it
    return number


def _row(info: SaveInfo) -> tuple[str, ...]:
    origin = info.origin
    run = f"run {origin.run}" if origin.run else ""
    cell = f"In[{origin.cell}]" if origin.cell else ""
    of = ", ".join(filter(None, [origin.reservation, run, cell, origin.reason]))
    when = datetime.fromtimestamp(info.saved_at).strftime("%Y-%m-%d %H:%M:%S")
    return (info.path, when, of, str(info.ranks), size(info.size_bytes), ", ".join(info.names))
