"""`%mesh run` and `%mesh sh`: a script that exists, on the ranks that are held; a command, on the nodes."""

from __future__ import annotations

import os

from monarch_nb.client.reservations.reserving.arguments import environment_option
from monarch_nb.client.scripts import torchrun_flags
from monarch_nb.client.scripts.script import Script
from monarch_nb.notebook.cells.answering import on_breakpoint
from monarch_nb.notebook.cells.cell import CellRunner
from monarch_nb.notebook.cells.instruments import instruments_of
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed, checked_name, read_environment


def run_script(session: Session, cells: CellRunner, parsed: Parsed) -> None:
    """Do what a `%mesh run` line says.

    Raises:
        UsageError: nothing is held, or a flag of torchrun's contradicts what is.
        RunFailed: the script failed on some ranks.
        RunInterrupted: it was interrupted.
        RunTimeout: it goes on after `--timeout`.
    """
    out = checked_name(parsed.text("out"))
    instruments = instruments_of(parsed)
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    held = torchrun_flags.held_by(mesh, f"%mesh reserve {session.current().name} --replace")
    launch = torchrun_flags.read(parsed.values, os.environ, held)
    path, *arguments = parsed.words
    script = launch.script(path, arguments, in_place=parsed.switch("in_place"), beside=parsed.switch("beside"))
    if launch.notes:
        show(calm_line("\n".join(launch.notes)))
    cells.run_script(
        mesh,
        script,
        noblock=parsed.switch("noblock"),
        timeout_s=parsed.seconds("timeout"),
        out=out,
        shown=launch.shown_ranks(mesh),
        on_breakpoint=on_breakpoint(parsed),
        instruments=instruments,
    )


def run_command(session: Session, cells: CellRunner, parsed: Parsed) -> None:
    """Do what a `%mesh sh` line says.

    Raises:
        UsageError: nothing is held.
        RunFailed, RunInterrupted, RunTimeout: as `run_script`.
    """
    out = checked_name(parsed.text("out"))
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh")).one_per_node
    environment = environment_option(read_environment(parsed.many("env")))
    cells.run_script(
        mesh,
        Script(parsed.words[0], shell=True, beside=parsed.switch("beside"), environment=environment),
        noblock=parsed.switch("noblock"),
        timeout_s=parsed.seconds("timeout"),
        out=out,
        shown=None,
        on_breakpoint=None,
    )
