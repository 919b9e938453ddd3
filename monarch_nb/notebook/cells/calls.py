"""What a cell calls of actors, and the commands that it runs: what they print is shown in it, as what a %%mesh cell
prints."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.actor.future import CallInterrupted
from monarch_nb.client.connections.events import Event, Notice
from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.presenting import show_calls_in
from monarch_nb.config import NONINTERACTIVE_VARIABLE
from monarch_nb.ground.interrupting import at_waits, kernel_ends
from monarch_nb.lines.templates import FoldBy, default_fold
from monarch_nb.notebook.cells.following import SCREEN, RunInterrupted
from monarch_nb.notebook.output import displays
from monarch_nb.notebook.output.publishing import call_later, displaying, printing
from monarch_nb.notebook.output.tables import is_notebook
from monarch_nb.notebook.output.view import Publish, RunView
from monarch_nb.notebook.session import Session


class CellCalls:
    """A cell that may call actors.

    Args:
        number: its execution count.
        finished: told the runs of calls that were shown to their end.
        terminal: there are no cells, only a terminal.
        by: returns in what lines of one row may differ on so many ranks.
    """

    def __init__(
        self,
        number: int,
        finished: Callable[[Any], None],
        *,
        terminal: bool,
        by: Callable[[int], FoldBy] = default_fold,
    ) -> None:
        self.number, self.finished = number, finished
        self._terminal, self._by = terminal, by
        self._publish: Callable[[], Publish] = printing if terminal else displaying()
        self._views: list[RunView] = []
        self._told: RunView | None = None
        self._callbacks: list[Callable[..., bool]] = []

    def listener(self, ranks: Iterable[int], mesh: str) -> Callable[[Event], None]:
        """Return what is told the events of a run of calls on a mesh: the view of its own that it has in this cell."""
        return self._view(ranks, of_calls=True).on_event

    def run_listener(self, ranks: Iterable[int]) -> Callable[[Event], None]:
        """Return what is told the events of a run that the cell waits for: its view shows what that of a %%mesh cell
        does, and the cell raises how it failed."""
        return self._view(ranks, of_calls=False).on_event

    def _view(self, ranks: Iterable[int], *, of_calls: bool) -> RunView:
        ranks = tuple(ranks)
        view = RunView(
            ranks,
            self._publish(),
            call_later,
            by=self._by(len(ranks)),
            stream=not os.environ.get(NONINTERACTIVE_VARIABLE),
            terminal=self._terminal,
            of_calls=of_calls,
            cell=displays.executing_cell(),
        )
        self._views.append(view)
        return view

    def screen(self) -> Screen:
        """Return the cell that executes when ranks ask."""
        return SCREEN

    def tell(self, text: str, key: str = "") -> None:
        """Show a line, below what actors have printed, in place of the one with this key; an empty one takes it
        back."""
        if self._told is None:
            self._told = self._views[-1] if self._views else None
        if self._told is None:
            self.listener([0], "")
            self._told = self._views[-1]
        self._told.on_event(Notice(text, key=key or text))

    def when_over(self, callback: Callable[..., bool]) -> None:
        """Call back when the cell is about to return, on its thread."""
        self._callbacks.append(callback)

    def close(self, error: BaseException | None) -> None:
        """The cell returns, or raised. What it has left behind is shown here when it prints."""
        callbacks, self._callbacks = self._callbacks, []
        is_interrupted = bool(callbacks) and _is_interrupt(error)
        goes_on = [callback(is_interrupted=is_interrupted) for callback in callbacks]
        for view in self._views:
            view.close(may_print_later=any(goes_on))


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C ended a cell, and nobody has seen to what it was for."""
    if isinstance(error, CallInterrupted | RunInterrupted):
        return False
    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError) and not kernel_ends()


def register(shell: InteractiveShell, session: Session) -> Callable[[], None]:
    """Have what each cell calls of actors shown in it; return what ends that."""
    terminal = not is_notebook(shell)
    cells = [CellCalls(shell.execution_count, session.finished, terminal=terminal, by=session.folds_by)]

    def begin(*_: Any) -> None:
        displays.forget(displays.executing_cell())
        cells[0] = CellCalls(shell.displayhook.prompt_count, session.finished, terminal=terminal, by=session.folds_by)

    def end(result: Any) -> None:
        with at_waits():
            cells[0].close(result.error_in_exec)

    leave = show_calls_in(lambda: cells[0])
    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)

    def unregister() -> None:
        leave()
        shell.events.unregister("pre_run_cell", begin)
        shell.events.unregister("post_run_cell", end)

    return unregister
