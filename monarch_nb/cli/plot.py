"""`monarch-nb plot`: curves of the numbers that ranks print, drawn with characters or as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.cli.declared import add_flag, part_of
from monarch_nb.cli.tables import print_table
from monarch_nb.config import default_pool
from monarch_nb.notebook.syntax.declarations import PLOT

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

SUMMARY = "draw curves of numbers that ranks print"
EXAMPLES = ("plot", "plot dev loss grad_norm", "plot loss --run 12,14 --svg loss.svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        add_flag(parser, flag)
    parser.add_argument("--svg", metavar="FILE", help="write a picture, light and dark, instead of drawing")


def run(options: argparse.Namespace) -> int:
    """Draw, or list what can be drawn; return the exit status."""
    from monarch_nb import attach
    from monarch_nb.client.curves.names import run_numbers
    from monarch_nb.client.curves.plot import drawn_for_terminal

    runs = run_numbers(options.run or "")
    name, names = _split(options, [*options.first, *options.numbers])
    mesh = part_of(attach(name, pool=options.pool), options.mesh, options.targets)
    if not names:
        return _list(mesh, runs)
    plot = mesh.plot(*names, x=options.x or "", run=runs or None)
    if options.svg:
        Path(options.svg).write_text(plot.svg(), encoding="utf-8")
        print(f"wrote {options.svg}", file=sys.stderr)
    else:
        print(drawn_for_terminal(plot))
    return 0


def _split(options: argparse.Namespace, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the reservation, if the first word is one, and the names; choose the pool."""
    from monarch_nb import list_reservations
    from monarch_nb.client.reservations.known.lists import pool_of

    if options.pool is None:
        options.pool = pool_of(words[0], default_pool()) if words else default_pool()
    held = {name for info in list_reservations(options.pool) for name in (info.name, f"{info.owner}/{info.name}")}
    return (words[0], words[1:]) if words and words[0] in held else (None, words)


def _list(mesh: Mesh, runs: Sequence[int]) -> int:
    from monarch_nb.client.connections.bridge import call
    from monarch_nb.client.curves.words import listing

    for reader in [mesh.numbers(run=number) for number in runs] or [mesh.numbers()]:
        found = listing(call(reader.names()))
        print(mesh.run_titles([reader.number])[reader.number])
        if found.rows:
            print_table(found.headers, found.rows)
        for note in found.notes:
            print(note)
    return 0
