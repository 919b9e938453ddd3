"""`%mesh logs` and `plot`: what ranks printed, also those of a reservation that has ended: its lines are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.words import in_older, listing, run_numbers
from monarch_nb.client.logs.records import PastLog, past_log
from monarch_nb.client.meshes import printed
from monarch_nb.errors import (
    MeshNotFound,
    MonarchNbError,
    ReservationExpired,
    ReservationNotFound,
    ReservationReleased,
)
from monarch_nb.ground.printing import put
from monarch_nb.lines.templates import checked_fold
from monarch_nb.notebook.output.logs import ended_line, nothing_kept, nothing_line, past_lines, shown_logs
from monarch_nb.notebook.output.tables import calm_line, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh


def logs(session: Session, parsed: Parsed) -> None:
    """Show what ranks wrote.

    Raises:
        UsageError: nothing is held, or was.
    """
    try:
        _logs_of_held(session, parsed)
    except (ReservationNotFound, MeshNotFound) as error:  # it has ended, maybe while this kernel was busy
        if (past := _kept(session, parsed, parsed.word, error)) is None:
            return
        number, by = parsed.count("run"), checked_fold(parsed.text("fold") or "")
        by = by or (None if number else session.folds_by(len(past.ranks)))
        for line in past_lines(past, parsed.count("lines"), number, by=by):
            put(f"{line}\n")


def _logs_of_held(session: Session, parsed: Parsed) -> None:
    mesh = _held(session, parsed, parsed.word)
    follow, number = parsed.switch("follow"), parsed.count("run")
    with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():
        line = ""
        by = checked_fold(parsed.text("fold") or "") or (None if number else session.folds_by(len(mesh.ranks)))
        for line in shown_logs(mesh, parsed.count("lines"), number, follow=follow, by=by):
            put(f"{line}\n")
        if not line:
            show(calm_line(nothing_line(mesh, number)))


def plot(session: Session, parsed: Parsed) -> None:
    """Draw the curves that are named, or list what there is to draw.

    Raises:
        UsageError: a name that no line of the run has, or what is no number of a run.
    """
    name = parsed.text("of")
    try:
        _draw(_held(session, parsed, name), parsed)
    except (ReservationNotFound, MeshNotFound) as error:
        if (past := _kept(session, parsed, name, error)) is not None:
            _draw(past, parsed)


def _draw(mesh: Mesh | PastLog, parsed: Parsed) -> None:
    numbers = run_numbers(parsed.text("run") or "")
    if not parsed.words:
        _list(mesh, numbers, f" --of {name}" if (name := parsed.text("of")) else "")
        return
    plot = printed.plot(mesh, *parsed.words, x=parsed.text("x") or "", run=numbers or None)
    drawn = [run.number for run in plot.drawing.runs]
    runs = [] if numbers or isinstance(mesh, PastLog) else mesh.past_runs()
    if going_on := [info for info in runs if not info.done and info.number > max(drawn)]:
        waits = f"--run {going_on[-1].number} waits for it"
        show(calm_line(f"{going_on[-1]} goes on and has not printed that yet: {waits}"))
    show(plot)


def _list(mesh: Mesh | PastLog, numbers: Sequence[int], of: str) -> None:
    """Show what can be drawn of runs: of the newest that has numbers, and what only older ones have.

    Args:
        of: names the reservation on a line, after a blank; empty where the notebook's is meant.
    """
    newest = None if numbers else printed.searched(mesh, older=True)
    for reader in [newest.newest()] if newest else [printed.numbers_of(mesh, number) for number in numbers]:
        found = listing(call(reader.names()))
        example = repr(found.example) if " " in found.example else found.example
        notes = [*found.notes, *([f"%mesh plot {example}{of} draws it"] if example else [])]
        notes += filter(None, [in_older(newest.older_names()) if newest else ""])
        show(table(printed.run_titles(mesh, [reader.number])[reader.number], found.headers, found.rows, notes))


def _held(session: Session, parsed: Parsed, name: str | None) -> Mesh:
    """Return the part of a mesh that is meant, of the reservation of a name, else of the notebook's.

    Raises:
        ReservationNotFound: it has ended.
    """
    of = session.client.attach(name, pool=session.pool) if name else None
    return session.mesh_that_printed(parsed.text("targets"), parsed.text("mesh"), of=of)


def _kept(session: Session, parsed: Parsed, name: str | None, error: MonarchNbError) -> PastLog | None:
    """Return what is kept of the output of a reservation that has ended, and say that it has.

    Args:
        name: of the reservation; None for the one that the notebook has held last.
        error: says that it is not held: raised when nothing is known of it. None is returned, and it is said, when it
            has printed nothing.
    """
    held, name = session.reservation, name or session.last_name
    pool = held.pool if held and held.name == name else session.pool
    past = past_log(name, pool, parsed.text("mesh"), parsed.text("targets")) if name else None
    if past is not None:
        session.end_is_said(past.name)
        show(calm_line(ended_line(past)))
    elif isinstance(error, ReservationExpired | ReservationReleased):
        show(calm_line(nothing_kept(error)))
    else:
        raise error
    return past
