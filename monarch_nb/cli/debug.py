"""`monarch-nb debug`: the debugger's prompt in a terminal."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the reservation (default: the only one you hold)")
    parser.add_argument("-t", "--targets", metavar="RANKS", default="all", help="as in 0, 0,2-3, ::2 or hosts=0")
    parser.add_argument(
        "--post-mortem", action="store_true", help="open the exception of ranks whose last run or endpoint failed"
    )


def run(options: argparse.Namespace) -> int:
    """Answer until everything goes on, or whoever types leaves; returns the exit code."""
    from monarch_nb import attach
    from monarch_nb.client.debug.debugger import Debugger
    from monarch_nb.client.debug.terminal import prompt
    from monarch_nb.shape import parse_targets

    mesh = attach(options.name, pool=options.pool).mesh
    part = mesh.select(parse_targets(options.targets, mesh.extent))
    debugger = Debugger(part)
    if options.post_mortem and not debugger.enter_errors():
        print("no error to look at: the last run did not fail on these ranks")
        return 0
    try:
        if prompt(part) == "nothing stopped":
            print("no rank has stopped at a breakpoint")
    except KeyboardInterrupt:
        print("\nleft the debugger; stopped ranks stay where they are")
    finally:
        if options.post_mortem:
            debugger.leave_errors()
    return 0
