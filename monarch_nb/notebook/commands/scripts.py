"""`%mesh run` and `%mesh sh`: a script that exists, on the ranks that are held; a command, on the nodes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from monarch_nb.client.reservations.taking import environment_option, has_room, unset_note
from monarch_nb.client.scripts import torchrun_flags
from monarch_nb.client.scripts.script import Script
from monarch_nb.notebook.cells.cell import CellRunner, HowShown
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed, read_environment


def run_script(session: Session, cells: CellRunner, parsed: Parsed) -> None:
    """Do what a `%mesh run` line says.

    Raises:
        UsageError: nothing is held, or a flag of torchrun's contradicts what is.
        RunFailed: the script failed on some ranks.
        RunInterrupted: it was interrupted.
        RunTimeout: it goes on after `--timeout`.
    """
    how = HowShown.of(parsed)
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    held_by = partial(
        torchrun_flags.held_by,
        reserve=f"%mesh reserve {session.current().name} --replace",
        room=partial(has_room, session.current().pool, instead=session.current().name),
    )
    ranks, note = torchrun_flags.of_all(parsed.values, mesh.ranks, mesh.core.ranks_per_node, held_by(mesh))
    if note:
        show(calm_line(note))
        mesh = mesh.select(ranks)
    launch = torchrun_flags.read(parsed.values, os.environ, held_by(mesh))
    path, *arguments = parsed.words
    script = launch.script(
        path,
        arguments,
        in_place=parsed.switch("in_place"),
        beside=parsed.switch("beside"),
        environment=_environment(parsed),
    )
    if launch.note:
        show(calm_line(launch.note))
    cells.run_script(mesh, script, replace(how, shown=launch.shown_ranks(mesh)))


def run_command(session: Session, cells: CellRunner, parsed: Parsed) -> None:
    """Do what a `%mesh sh` line says.

    Raises:
        UsageError: nothing is held.
        RunFailed, RunInterrupted, RunTimeout: as `run_script`.
    """
    how = HowShown.of(parsed)
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh")).one_per_node
    script = Script(parsed.words[0], shell=True, beside=parsed.switch("beside"), environment=_environment(parsed))
    cells.run_script(mesh, script, how)


def _environment(parsed: Parsed) -> dict[str, str]:
    """Return what `--env` says, and show what it can not."""
    chosen = read_environment(parsed.many("env"))
    environment = environment_option(chosen)
    if note := unset_note(chosen):
        show(calm_line(note))
    return environment
