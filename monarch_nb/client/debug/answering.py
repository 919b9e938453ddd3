"""Ranks that have stopped at breakpoints: who waits for them opens the prompt, here or in a terminal."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.events import Notice
from monarch_nb.client.debug.console import PROMPT, Console, Left, completions
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.runs.results import can_answer, choice
from monarch_nb.config import cadence
from monarch_nb.ground.interrupting import at_prompt, kernel_ends
from monarch_nb.ground.printing import put
from monarch_nb.ground.rank_sets import name_ranks

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run
    from monarch_nb.config import OnBreakpoint

SETTLE_S = cadence(0.3)
"""Ranks that stop less than this apart are in the same table."""
SETTLES = 7
"""So often more ranks are waited for: some that go on stopping do not keep people from the prompt."""


@dataclass(frozen=True)
class Screen:
    """Where people are asked.

    Attributes:
        prompt: opens the debugger's prompt for a mesh; raises KeyboardInterrupt after Ctrl-C there.
        say: shows a line.
        stays: how people come back and what Ctrl-C does, when they have left the prompt; with {name} of the reservation
            and {them}.
    """

    prompt: Callable[[Mesh], Left]
    say: Callable[[str], None]
    stays: str


class Answering:
    """Answers what a run asks while somebody waits for it.

    Args:
        run: the run.
        screen: where people are asked.
        said: what they have said that breakpoints do in it.
    """

    def __init__(self, run: Run, screen: Screen, said: OnBreakpoint | None = None) -> None:
        self._run, self._screen, self._said = run, screen, said
        self._debugger = Debugger(run.mesh)
        self._left: set[tuple[int, int]] = set()

    def __call__(self) -> None:
        """Ranks have stopped: let people answer, who may leave the prompt for good.

        Raises:
            KeyboardInterrupt: Jupyter ends the kernel at the prompt.
        """
        if self._settle():
            return
        stops = {(stop.rank, stop.number) for stop in self._debugger.stops()}
        if not stops:  # they go on, and their mark is on its way; or they do not answer yet
            self._run.stops.remind()
            return
        if stops & self._left:
            return
        if not can_answer():
            if choice(self._said) != "stop":
                self._pass()
            return
        try:
            with at_prompt():
                left = self._screen.prompt(self._run.mesh)
        except KeyboardInterrupt:
            if kernel_ends():
                raise
            left = "quit"
        if left == "quit":
            self._leave()

    def _settle(self) -> bool:
        """Wait until no more ranks stop; return whether the run is over."""
        for _ in range(SETTLES):
            known = self._run.stops.count
            if self._run.wait(SETTLE_S):
                return True
            if self._run.stops.count == known:
                break
        return False

    def _pass(self) -> None:
        """Nobody can answer: this run must not wait for ever."""
        stops = self._debugger.continue_all(self._run.id)
        places = ", ".join(sorted({stop.place for stop in stops}))
        if places:
            text = (
                f"breakpoint() at {places} was passed: nobody can answer here (--on-breakpoint stop makes ranks wait)"
            )
            post(self._run.emit, Notice(text, key="passed"))

    def _leave(self) -> None:
        stops = self._debugger.stops()
        self._left = {(stop.rank, stop.number) for stop in stops}
        if stops:
            ranks = {stop.rank for stop in stops}
            stay, them = ("stays where it is", "it") if len(ranks) == 1 else ("stay where they are", "them")
            way_back = self._screen.stays.format(name=self._run.mesh.reservation.name, them=them)
            self._screen.say(f"{name_ranks(ranks)} {stay}, and {way_back}")


def prompt(mesh: Mesh) -> Left:
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
