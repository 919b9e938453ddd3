"""`monarch-nb plot`, `top`, `debug` and `doctor`: what people look at."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.cli.declared import add_flag, part_of
from monarch_nb.cli.saying import print_json, print_table, say, tell
from monarch_nb.config import VERSION, default_pool
from monarch_nb.errors import PoolError, ReservationNotFound, UsageError
from monarch_nb.notebook.syntax.declarations import PLOT

if TYPE_CHECKING:
    from monarch_nb.client.doctor.diagnosis import Diagnosis
    from monarch_nb.client.logs.records import PastLog
    from monarch_nb.client.meshes.mesh import Mesh

PLOT_SUMMARY = "draw curves of numbers that ranks print"
PLOT_EXAMPLES = ("plot", "plot dev loss grad_norm", "plot loss --run 12,14 --svg loss.svg")


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.usage = "monarch-nb plot [NAME] [NUMBER ...] [options]"
    parser.description = (
        "Draw curves of numbers that ranks print, as in loss: 2.31, loss=2.3 or 'loss': 2.3.\n"
        "The line is the first rank's. A band spans all ranks where they differ."
    )
    name = "the reservation (default: the only one you hold)"
    parser.add_argument("first", nargs="*", metavar="NAME", help=name)
    parser.add_argument(
        "numbers", nargs="*", metavar="NUMBER", help="the name of a number: a chart for each; without names, lists all"
    )
    for flag in PLOT.flags:
        if flag.name != "--of":  # the first word says that here
            add_flag(parser, flag)
    parser.add_argument("--svg", metavar="FILE", help="write a picture, light and dark, instead of drawing")


def plot(options: argparse.Namespace) -> int:
    """Draw, or list what can be drawn; return the exit status."""
    from monarch_nb import attach
    from monarch_nb.client.logs.records import past_log
    from monarch_nb.notebook.output.logs import ended_line

    name, names = _split(options, [*options.first, *options.numbers])
    try:
        return _plot(options, part_of(attach(name, pool=options.pool), options.mesh, options.targets), names)
    except (ReservationNotFound, UsageError):  # the first word may name one that has ended
        past = None if name or not names else past_log(names[0], options.pool, options.mesh, options.targets)
        if past is None:
            raise
    say(ended_line(past))
    return _plot(options, past, names[1:])


def _plot(options: argparse.Namespace, mesh: Mesh | PastLog, names: Sequence[str]) -> int:
    from monarch_nb.client.curves.plot import drawn_for_terminal
    from monarch_nb.client.curves.words import run_numbers
    from monarch_nb.client.meshes import printed

    runs = run_numbers(options.run or "")
    if not names:
        return _list(mesh, runs)
    plot = printed.plot(mesh, *names, x=options.x or "", run=runs or None)
    if options.svg:
        Path(options.svg).write_text(plot.svg(), encoding="utf-8")
        print(f"wrote {options.svg}", file=sys.stderr)
    else:
        print(drawn_for_terminal(plot))
    return 0


def _split(options: argparse.Namespace, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the reservation, if the first word is one, and the names; choose the pool."""
    from monarch_nb import list_reservations
    from monarch_nb.client.reservations.lists import pool_of

    if options.pool is None:
        options.pool = pool_of(words[0], default_pool()) if words else default_pool()
    held = {name for info in list_reservations(options.pool) for name in (info.name, f"{info.owner}/{info.name}")}
    return (words[0], words[1:]) if words and words[0] in held else (None, words)


def _list(mesh: Mesh | PastLog, runs: Sequence[int]) -> int:
    from monarch_nb.client.connections.bridge import call
    from monarch_nb.client.curves.words import in_older, listing
    from monarch_nb.client.meshes.printed import numbers_of, run_titles, searched

    newest = None if runs else searched(mesh, older=True)
    for reader in [newest.newest()] if newest else [numbers_of(mesh, number) for number in runs]:
        found = listing(call(reader.names()))
        print(run_titles(mesh, [reader.number])[reader.number])
        if found.rows:
            print_table(found.headers, found.rows)
        for note in filter(None, [*found.notes, in_older(newest.older_names()) if newest else ""]):
            tell(note)
    return 0


def top(options: argparse.Namespace) -> int:
    """Show it, live until Ctrl-C, for some time, or once, as where no terminal reads it; return the exit status."""
    from monarch_nb import attach
    from monarch_nb.client.instruments.top import TerminalScreen, follow

    for_s: float | None = getattr(options, "for")
    if options.once and for_s is not None:
        raise UsageError("say one of --once and --for")
    mesh = part_of(attach(options.name, pool=options.pool), options.mesh, options.targets)
    if options.once or (for_s is None and not sys.stdout.isatty()):  # a pipe or a file has no end of its own
        print(mesh.top())
        return 0
    until_s = time.monotonic() + for_s if for_s is not None else None
    screen = TerminalScreen()
    with contextlib.suppress(KeyboardInterrupt):
        for found in follow(mesh.core, mesh.ranks):
            screen.show(str(found))
            if until_s is not None and time.monotonic() >= until_s:
                break
    return 0


def debug(options: argparse.Namespace) -> int:
    """Answer until everything goes on, or whoever types leaves; returns the exit code."""
    from monarch_nb import attach
    from monarch_nb.client.debug.answering import prompt
    from monarch_nb.client.debug.debugger import Debugger

    part = part_of(attach(options.name, pool=options.pool), options.mesh, options.targets)
    debugger = Debugger(part)
    if options.post_mortem and not debugger.enter_errors():
        tell(debugger.why_no_error())
        return 0
    try:
        if prompt(part) == "nothing stopped":
            print("no rank has stopped: breakpoint() in a cell or a script stops the ranks that reach it")
    except KeyboardInterrupt:
        print("\nleft the debugger; stopped ranks stay where they are")
    finally:
        if options.post_mortem:
            debugger.leave_errors()
    return 0


DOCTOR = (
    "compare this environment with every node's",
    "doctor dev",
    "doctor --pool lab",
    "doctor --json > doctor.json",
)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add what `doctor` understands."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the reservation (default: the only one you hold; with --pool, or when you hold none, the whole pool)",
    )
    parser.add_argument("--json", action="store_true", help="for programs, and for a report of a bug")


def doctor(options: argparse.Namespace) -> int:
    """Return 0 when nothing differs; with `--json` also say what this environment is when no node answers."""
    try:
        diagnosis = _diagnosis(options)
    except PoolError as error:
        if not options.json:
            raise
        from monarch_nb.worker.environment_report import describe

        here = describe(["monarch-nb", "torch"])
        print_json({"version": VERSION, "healthy": False, "error": str(error), "here": asdict(here)})
        return 1
    if options.json:
        print_json({"version": VERSION, "healthy": diagnosis.healthy, **asdict(diagnosis)})
    else:
        tell(diagnosis)
    return 0 if diagnosis.healthy else 1


def _diagnosis(options: argparse.Namespace) -> Diagnosis:
    from monarch_nb import attach, list_reservations
    from monarch_nb.client.doctor.doctor import examine_pool

    if options.name or (not options.is_pool_named and any(info.held_by_me for info in list_reservations(options.pool))):
        return attach(options.name, pool=options.pool).doctor()
    return examine_pool(options.pool)
