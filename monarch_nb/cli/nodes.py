"""`monarch-nb replace`, `grow`, `shrink` and `stop`: which nodes and meshes a reservation has."""

from __future__ import annotations

import argparse
import sys

from monarch_nb.cli.hints import typed_here


def replace(options: argparse.Namespace) -> int:
    """Put free nodes in the places of some."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    replaced = reservation.replace(*options.node, wait=options.wait or False, time=options.time, progress=_say)
    _tell("\n".join([*map(str, replaced), "the other ranks keep theirs; notebooks that are attached go on with these"]))
    return 0


def grow(options: argparse.Namespace) -> int:
    """Hold more nodes."""
    from monarch_nb import attach

    reservation = attach(options.name, pool=options.pool)
    into, mesh, wait = options.into or "", options.mesh or "", options.wait or False
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


def _tell(what: object) -> None:
    print(typed_here(str(what)))


def _say(line: str) -> None:
    print(typed_here(line), file=sys.stderr, flush=True)
