"""`monarch-nb top`: where ranks spend their time, and who is waited for."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from monarch_nb.cli.declared import part_of
from monarch_nb.errors import UsageError


def run(options: argparse.Namespace) -> int:
    """Show it, live until Ctrl-C, for some time, or once, as where no terminal reads it; return the exit status."""
    from monarch_nb import attach
    from monarch_nb.client.top.terminal import TerminalScreen
    from monarch_nb.client.top.tops import follow

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
