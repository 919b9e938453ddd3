"""The debugger's prompt in a terminal."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.commands import completions
from monarch_nb.client.debug.console import PROMPT, Console, Left
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.ground.printing import put

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh


def prompt(mesh: HeldMesh) -> Left:
    """Open the debugger's prompt, with a history and Tab where there is readline."""
    debugger = Debugger(mesh)
    with _lines_read(debugger) as read:
        return Console(debugger, read, say).run()


@contextlib.contextmanager
def _lines_read(debugger: Debugger) -> Iterator[Callable[[str], str]]:
    """Give the block what reads a line; Tab completes words at the debugger's own prompt."""
    try:
        import readline
    except ImportError:
        yield builtins.input
        return

    found: list[str] = []

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()]
            found[:] = [f"{each} " for each in completions(before, debugger.stops()) if each.startswith(word)]
        return found[number] if number < len(found) else None

    def read(prompt: str) -> str:
        readline.set_completer(complete if prompt == PROMPT else None)
        return builtins.input(prompt)

    known = readline.get_completer()
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield read
    finally:
        readline.set_completer(known)


def say(text: str) -> None:
    """Print a line; it may end with a newline already."""
    put(text if text.endswith("\n") else f"{text}\n")


SCREEN = Screen(
    prompt,
    say,
    "this program waits for {them}: monarch-nb debug {name} in another terminal opens the debugger again; Ctrl-C "
    "interrupts {them}",
)
"""The terminal of a program that waits."""
