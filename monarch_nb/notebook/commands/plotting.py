"""`%mesh plot`: curves of what ranks print, in a cell of their own, which goes on while their runs do."""

from __future__ import annotations

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.names import run_numbers
from monarch_nb.client.curves.words import listing
from monarch_nb.client.logs.metrics import RunMetrics
from monarch_nb.lines.choosing import canonical
from monarch_nb.notebook.output.tables import Shown, calm_line, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed


def plot(session: Session, parsed: Parsed) -> None:
    """Draw the curves that are named, or list what there is to draw.

    Raises:
        UsageError: a name that no line of the run has, or what is no number of a run.
    """
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    numbers = run_numbers(parsed.text("run") or "")
    if not parsed.words:
        for reader in [mesh.numbers(run=number) for number in numbers] or [mesh.numbers()]:
            show(_listed(reader, mesh.run_titles([reader.number])[reader.number]))
        return
    if not numbers:
        numbers = [mesh.numbers([canonical(name) for name in parsed.words]).number]
        going_on = [info for info in mesh.past_runs() if not info.done and info.number > numbers[0]]
        if going_on:
            waits = f"--run {going_on[-1].number} waits for it"
            show(calm_line(f"{going_on[-1]} goes on and has not printed that yet: {waits}"))
    show(mesh.plot(*parsed.words, x=parsed.text("x") or "", run=numbers))


def _listed(reader: RunMetrics, title: str) -> Shown:
    """Return what can be drawn of a run."""
    found = listing(call(reader.names()))
    example = repr(found.example) if " " in found.example else found.example
    how = [f"%mesh plot {example} draws it"] if example else []
    return table(title, found.headers, found.rows, [*found.notes, *how])
