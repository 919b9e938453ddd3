"""Curves in one cell: drawn anew while their runs go on, live where somebody sees them, and kept as a picture. What is
drawn, and how, is in client/curves.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import publish_display_data

from monarch_nb.client.connections.bridge import post
from monarch_nb.client.curves.pictures import svg
from monarch_nb.client.curves.plot import Plot, drawn_for_terminal, follow
from monarch_nb.client.curves.words import RunPictures, text
from monarch_nb.config import cadence
from monarch_nb.errors import UsageError
from monarch_nb.notebook.output.tables import Shown, is_notebook, show

if TYPE_CHECKING:
    from monarch_nb.notebook.panels.widget import CurvesWidget

_PICTURE_INTERVAL_S = cadence(2.0)
"""Without a widget the whole picture goes to the browser."""

_going_on: set[asyncio.Task[None]] = set()


def register(shell: InteractiveShell, is_attended: Callable[[], bool]) -> Callable[[], None]:
    """Show plots live from now on, in a terminal with characters; returns what ends that.

    Args:
        is_attended: returns whether a person sees the cell that executes now; else a program runs the notebook.
    """
    display_formatter: Any = shell.display_formatter  # IPython's has no types
    formatter = display_formatter.ipython_display_formatter
    if is_notebook(shell):
        formatter.for_type(Plot, lambda plot: CurvesCell(plot, is_attended=is_attended()).show())
    else:
        formatter.for_type(Plot, lambda plot: show(Shown(drawn_for_terminal(plot), "")))
    return lambda: formatter.pop(Plot, None)


class CurvesCell:
    """Shows a plot in the cell that executes now.

    Args:
        is_attended: a person sees it; else a program runs the notebook.
    """

    def __init__(self, plot: Plot, *, is_attended: bool) -> None:
        self._plot, self._is_attended = plot, is_attended
        self._drawing = plot.drawing
        self._cell = contextvars.copy_context()
        self._display_id = secrets.token_hex(16)
        self._widget: CurvesWidget | None = None
        self._drawn_at_s = 0.0

    def show(self) -> None:
        """Show what is read, and go on while there is more."""
        if self._is_attended and not self._drawing.is_over:
            self._widget = _widget()
        self._draw(self._drawing.drawn(), update=False)
        if self._drawing.is_over:
            return
        if self._is_attended:
            post(self._go_on)
        else:  # nobody sees it grow
            self._draw(self._plot.drawn(), update=True)

    def _go_on(self) -> None:
        task = asyncio.get_running_loop().create_task(self._follow())
        _going_on.add(task)
        task.add_done_callback(_going_on.discard)

    async def _follow(self) -> None:
        drawn: list[RunPictures] = []

        def draw(runs: list[RunPictures]) -> None:
            drawn[:] = runs
            if self._widget is not None:
                self._widget.draw(runs)
            elif time.monotonic() - self._drawn_at_s > _PICTURE_INTERVAL_S:
                self._draw(runs, update=True)

        await follow(self._drawing, draw)
        self._draw(drawn or self._drawing.drawn(), update=True)  # what the notebook keeps

    def _draw(self, runs: Sequence[RunPictures], *, update: bool) -> None:
        """Put the picture into the cell: its first form belongs to this cell, later ones are found by their id."""
        bundle: dict[str, Any] = {"image/svg+xml": svg(runs), "text/plain": text(runs)}
        metadata: dict[str, Any] = {}
        if self._widget is not None:
            self._widget.draw(runs)
            bundle, metadata = self._widget.bundle(bundle)
        context = contextvars.Context() if update else self._cell.copy()
        transient = {"display_id": self._display_id}
        context.run(partial(publish_display_data, bundle, metadata, transient=transient, update=update))
        self._drawn_at_s = time.monotonic()


def _widget() -> CurvesWidget | None:
    try:
        from monarch_nb.notebook.panels.widget import CurvesWidget

        return CurvesWidget()
    except (UsageError, ImportError):  # no JavaScript, no anywidget: the picture is drawn anew
        return None
