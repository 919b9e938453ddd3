"""`monarch-nb debug`: the debugger's prompt in a terminal."""

from __future__ import annotations

import argparse

from monarch_nb.cli.declared import part_of


def run(options: argparse.Namespace) -> int:
    """Answer until everything goes on, or whoever types leaves; returns the exit code."""
    from monarch_nb import attach
    from monarch_nb.client.debug.debugger import Debugger
    from monarch_nb.client.debug.terminal import prompt

    part = part_of(attach(options.name, pool=options.pool), options.mesh, options.targets)
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
