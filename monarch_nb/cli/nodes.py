"""`monarch-nb replace`, `grow`, `shrink` and `stop`: which nodes and meshes a reservation has."""

from __future__ import annotations

import argparse
import sys

from monarch_nb.cli.hints import typed_here
from monarch_nb.times import seconds_of

REPLACE = ("put free nodes in the places of nodes that never come back", "replace dev", "replace dev --node host3")
GROW = ("hold more nodes", "grow dev --nodes 4", "grow dev --nodes +1 --into main --wait 2h")
SHRINK = (
    "give some of the nodes of a reservation back",
    "shrink dev --nodes 2 --into main",
    "shrink dev --node host3 --into main",
)
STOP = ("end a mesh beside main; you keep its nodes", "stop dev --mesh grown")
"""What a command does, and examples."""


def add_replace_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `replace` takes."""
    _add_name(parser)
    replaced = "a node by name or number, even one that answers (default: all that do not)"
    parser.add_argument("--node", action="append", default=[], metavar="N", help=replaced)
    _add_wait(parser)
    _add_time(parser)


def add_grow_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `grow` takes."""
    _add_name(parser)
    parser.add_argument("--nodes", required=True, metavar="N", help="the new number of nodes, or +2 for two more")
    new = "name of the new mesh over all nodes (default: grown); other meshes stay as they are"
    parser.add_argument("--mesh", metavar="NAME", default="", help=new)
    _add_into(parser)
    _add_wait(parser)
    _add_time(parser)


def add_shrink_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `shrink` takes."""
    _add_name(parser)
    left = "how many nodes to keep: those that do not answer go first, then the last"
    parser.add_argument("--nodes", metavar="N", help=left)
    node = "a node to give back, by name or number"
    parser.add_argument("--node", action="append", default=[], metavar="N", help=node)
    _add_into(parser)


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `stop` takes."""
    _add_name(parser)
    parser.add_argument("--mesh", required=True, metavar="NAME", help="a mesh that grow or spawn_procs has made")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the reservation (default: the only one you hold)")


def _add_into(parser: argparse.ArgumentParser) -> None:
    into = "main or another mesh: gets fresh ranks on all nodes; its variables are lost"
    parser.add_argument("--into", metavar="MESH", default="", help=into)


def _add_wait(parser: argparse.ArgumentParser) -> None:
    in_line = "wait in line for nodes that others hold, without limit or at most T: 2h"
    parser.add_argument("--wait", nargs="?", const="", metavar="T", help=in_line)


def _add_time(parser: argparse.ArgumentParser) -> None:
    asked = "the time to ask the engine for (default: the rest of the reservation's)"
    parser.add_argument("--time", metavar="T", help=asked)


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
    into, mesh, wait = options.into, options.mesh, _wait(options)
    _tell(reservation.grow(options.nodes, into=into, mesh=mesh, wait=wait, time=options.time, progress=_say))
    return 0


def shrink(options: argparse.Namespace) -> int:
    """Give nodes back."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    _tell(reservation.shrink(options.nodes, node=options.node, into=options.into, progress=_say))
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
