"""`%mesh plot`: curves of what ranks print, in a cell of their own, which goes on while their runs do."""

from __future__ import annotations

from monarch_nb.client.connections.bridge import call
from monarch_nb.errors import UsageError
from monarch_nb.lines.choosing import canonical
from monarch_nb.notebook.curves import words
from monarch_nb.notebook.curves.live import drawing_of, titles
from monarch_nb.notebook.curves.showing import CurvesCell
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.panels.showing import Panels
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed


def plot(session: Session, panels: Panels, parsed: Parsed) -> None:
    """Draw the curves that are named, or list what there is to draw.

    Raises:
        UsageError: a name that no line of the run has, or what is no number of a run.
    """
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    numbers = run_numbers(parsed.text("run") or "")
    if not parsed.words:
        for reader in [mesh.numbers(run=number) for number in numbers] or [mesh.numbers()]:
            found = call(reader.names())
            show(words.listing(titles(mesh, [reader.number])[reader.number], found))
        return
    x = canonical(parsed.text("x") or "")
    names = [canonical(name) for name in parsed.words]
    if not numbers:
        numbers = [mesh.numbers(names).number]
        going_on = [info for info in mesh.past_runs() if not info.done and info.number > numbers[0]]
        if going_on:
            waits = f"--run {going_on[-1].number} waits for it"
            show(calm_line(f"{going_on[-1]} goes on and has not printed that yet: {waits}"))
    CurvesCell(drawing_of(mesh, names, x, numbers), is_attended=panels.is_attended).show()


def run_numbers(text: str) -> list[int]:
    """Return the numbers that `--run` names.

    Raises:
        UsageError: they are no numbers of runs.
    """
    numbers = []
    for word in filter(None, text.split(",")):
        if not word.strip().isdecimal() or not int(word):
            raise UsageError(f"--run takes the number of a run, or several as in 12,14, not {text!r}")
        numbers.append(int(word))
    return list(dict.fromkeys(numbers))
