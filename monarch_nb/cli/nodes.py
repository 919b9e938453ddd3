"""`monarch-nb replace`, `grow`, `shrink` and `stop`: which nodes and meshes a reservation has."""

from __future__ import annotations

import argparse
import sys

from monarch_nb.cli.hints import typed_here
from monarch_nb.notebook.syntax.command_line import Command
from monarch_nb.times import seconds_of

STOP = ("end a mesh beside main; you keep its nodes", "stop dev --mesh grown")
"""What it does, and an example."""


def about(declared: Command) -> tuple[str, ...]:
    """Return what a command does that is declared as a subcommand of `%mesh`, and examples."""
    return declared.summary, *(line.removeprefix(declared.magic) for line, _ in declared.examples)


def add_declared(parser: argparse.ArgumentParser, declared: Command, required: str = "") -> None:
    """Declare that a command takes what the subcommand of `%mesh` takes; the flag `required` can not be left out."""
    _add_name(parser)
    for flag in declared.flags:
        parser.add_argument(
            flag.name,
            metavar=flag.value,
            help=typed_here(flag.help),
            required=flag.name == required,
            action="append" if flag.repeat else "store",
            nargs="?" if flag.optional else None,
            const="" if flag.optional else None,
            default=[] if flag.repeat else None,
        )


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `stop` takes."""
    _add_name(parser)
    parser.add_argument("--mesh", required=True, metavar="NAME", help="a mesh that grow or spawn_procs has made")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the reservation (default: the only one you hold)")


def replace(options: argparse.Namespace) -> int:
    """Put free nodes in the places of some."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    replaced = reservation.replace(*options.node, wait=_wait(options), time=options.time, progress=_say)
    _tell("\n".join([*map(str, replaced), "the other ranks keep theirs; notebooks that are attached go on with these"]))
    return 0


def grow(options: argparse.Namespace) -> int:
    """Hold more nodes."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    into, mesh, wait = options.into or "", options.mesh or "", _wait(options)
    _tell(reservation.grow(options.nodes, into=into, mesh=mesh, wait=wait, time=options.time, progress=_say))
    return 0


def shrink(options: argparse.Namespace) -> int:
    """Give nodes back."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    _tell(reservation.shrink(options.nodes, node=options.node, into=options.into or "", progress=_say))
    return 0


def stop(options: argparse.Namespace) -> int:
    """End a mesh."""
    from monarch_nb import attach
    from monarch_nb.client.reservations.meshes import stopped_line

    reservation = attach(options.name, pool=options.pool)
    print(stopped_line(reservation.name, options.mesh, reservation.stop_mesh(options.mesh)))
    return 0


def _wait(options: argparse.Namespace) -> bool | float:
    return options.wait is not None and (seconds_of(options.wait, "--wait") if options.wait else True)


def _tell(what: object) -> None:
    print(typed_here(str(what)))


def _say(line: str) -> None:
    print(typed_here(line), file=sys.stderr, flush=True)
