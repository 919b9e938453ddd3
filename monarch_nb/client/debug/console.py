"""The prompt: reads commands, prints answers. Whoever opens it says how lines are read and texts are shown."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from monarch_nb.client.debug.commands import HELP, Command, meant, parse
from monarch_nb.client.debug.debugger import Attached, Debugger
from monarch_nb.client.debug.stops import StopInfo, folded, stops_table
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError
from monarch_nb.ground.interrupting import kernel_ends
from monarch_nb.ground.rank_sets import name_ranks

PROMPT = "monarch_dbg> "
Left = Literal["quit", "continued", "nothing stopped"]
ANSWERED_EVERY_S = cadence(2.0)
"""So often it is looked whether somebody else has answered."""


class Console:
    """One opened prompt.

    Args:
        debugger: of the mesh.
        read: returns the line that is typed at a prompt; raises EOFError when there is no more to come, and
            KeyboardInterrupt after Ctrl-C.
        show: shows text, which ends with a newline.
        show_table: shows where ranks have stopped; as text when not said.
    """

    def __init__(
        self,
        debugger: Debugger,
        read: Callable[[str], str],
        show: Callable[[str], None],
        show_table: Callable[[Sequence[StopInfo]], None] | None = None,
    ) -> None:
        self._debugger, self._read, self._show = debugger, read, show
        self._show_table = show_table or (lambda stops: show(f"{stops_table(stops)}\n"))

    def run(self) -> Left:
        """Show what has stopped, and do what is typed until everything goes on, or whoever types leaves.

        Raises:
            KeyboardInterrupt: Ctrl-C at the prompt.
        """
        stops = self._debugger.stops()
        if not stops:
            return "nothing stopped"
        self._show_table(stops)
        while True:
            try:
                with self._told_when_answered():
                    line = self._read(PROMPT)
            except EOFError:
                return "quit"
            try:
                command = parse(line)
                if command.word == "quit":
                    return "quit"
                if not self._debugger.stops():
                    return "continued"
                if command.word:
                    self._do(command, line.strip())
            except MonarchNbError as error:
                self._show(f"{error}\n")
                continue
            if command.word in ("continue", "attach", "cast"):
                stops = self._debugger.stops()
                if not stops:
                    return "continued"
                if command.word == "continue":  # to the next breakpoint
                    self._show_table(stops)

    @contextlib.contextmanager
    def _told_when_answered(self) -> Iterator[None]:
        """Say so when somebody else lets the ranks go on. The prompt itself can not be taken away: what ends a kernel's
        `input()` is an interrupt, and that could hit what comes after it. In JupyterLab our extension presses Enter
        when it reads this (labextension/src/lab/prompts.ts)."""
        typed = threading.Event()

        def look() -> None:
            while not typed.wait(ANSWERED_EVERY_S):
                with contextlib.suppress(MonarchNbError):
                    if not self._debugger.stops() and not typed.is_set():
                        self._show("answered elsewhere: nothing waits here any more (Enter leaves this prompt)\n")
                        return

        watch = threading.Thread(target=look, name="answered-elsewhere", daemon=True)
        watch.start()
        try:
            yield
        finally:
            typed.set()

    def _do(self, command: Command, typed: str) -> None:
        match command.word:
            case "list":
                self._show_table(self._debugger.stops())
            case "help":
                self._show(f"{HELP}\n")
            case "continue":
                self._show(f"{_continued(self._debugger.continue_all())}\n")
            case "cast":
                self._cast(command, typed)
            case "attach":
                self._attach(self._debugger.attach(command.ranks, command.name))

    def _cast(self, command: Command, typed: str) -> None:
        """Show what ranks answer within a time that is bounded; Ctrl-C ends only the waiting."""
        try:
            answers = self._debugger.cast(command.ranks, command.line, command.name)
        except KeyboardInterrupt:
            if kernel_ends():
                raise
            self._show("not waited for: ranks go on executing it; list shows where they are\n")
            return
        self._show(f"{folded(answers)}\n")
        if typed == command.line and (hint := meant(typed, answers.values())):
            self._show(f"{hint}\n")

    def _attach(self, attached: Attached) -> None:
        stop = attached.stop
        who = f"{stop.actor} {stop.rank} ({stop.host})"
        self._show(f"Attached to debug session for {who}\n")
        text = attached.look()
        if "-> " not in text and attached.state == "asks":  # its last words were about something else
            name = stop.function.rpartition(".")[2] if "." in stop.function else "<module>"
            text = f"> {stop.file}({stop.line_number}){name}()\n-> {stop.line}\n"
        while True:
            text = self._wait(attached, text)
            if attached.state != "asks":
                break
            try:
                line = self._read(attached.prompt)
            except EOFError:
                break
            if line.strip() == "detach":
                break
            text = attached.send(line)
        self._show(f"Detached from debug session for {who}{': it goes on' if attached.state == 'gone' else ''}\n")

    def _wait(self, attached: Attached, text: str) -> str:
        """Show what pdb says until it asks for the next line; Ctrl-C ends only the waiting."""
        self._say(text)
        try:
            while attached.state == "executes":
                self._say(attached.look())
        except KeyboardInterrupt:
            if kernel_ends():
                raise
            self._show(f"rank {attached.stop.rank} still executes it: attach waits for it again\n")
        return ""

    def _say(self, text: str) -> None:
        if text:
            self._show(text if text.endswith("\n") else f"{text}\n")


def _continued(stops: list[StopInfo]) -> str:
    ranks = {stop.rank for stop in stops}
    return f"{name_ranks(ranks)} told to continue" if ranks else "no rank has stopped"
