"""The debugger's prompt in a terminal."""

from __future__ import annotations

import builtins
import contextlib
import sys
from typing import TYPE_CHECKING

from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.console import Console, Left
from monarch_nb.client.debug.debugger import Debugger

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh


def prompt(mesh: HeldMesh) -> Left:
    """Open the debugger's prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 -- input() then has a history
    return Console(Debugger(mesh), builtins.input, say).run()


def say(text: str) -> None:
    """Print a line; it may end with a newline already."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


SCREEN = Screen(
    prompt,
    say,
    "this program waits for them: monarch-nb debug {name} in another terminal opens the debugger again; Ctrl-C "
    "interrupts them",
)
"""The terminal of a program that waits."""
