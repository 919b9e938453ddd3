"""The notebook that this process serves: its extension says which it is, and how it shows what a client holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from monarch_nb.client.connections.events import Event
from monarch_nb.errors import UsageError
from monarch_nb.ground.code_names import run_name


class CallingCell(Protocol):
    """A cell of the notebook, in which what it calls of actors is shown, and what runs print that it waits for.

    Attributes:
        number: its execution count.
    """

    number: int

    def listener(self, ranks: Iterable[int], mesh: str) -> Callable[[Event], None]:
        """Return what is told the events of a run of calls on a mesh."""

    def run_listener(self, ranks: Iterable[int]) -> Callable[[Event], None]:
        """Return what is told the events of a run that the cell waits for."""

    def tell(self, text: str, key: str = "") -> None:
        """Show a line, in place of the one with this key, where it has one; an empty one takes that back."""

    def finished(self, run: Any) -> None:
        """A run of calls was shown to its end."""

    def screen(self) -> Any:
        """Return where people are asked what ranks ask (client.debug.answering.Screen)."""

    def when_over(self, callback: Callable[..., bool]) -> None:
        """Call `callback` when the cell is about to return, on its thread, with `is_interrupted`: whether Ctrl-C has
        ended it. It returns whether more may be printed in the name of the cell."""


_cells: list[Callable[[], CallingCell]] = []


def show_calls_in(current: Callable[[], CallingCell]) -> Callable[[], None]:
    """Have what actors print shown in the cell that `current` returns, the one that executes or has last; returns what
    ends that."""
    _cells.append(current)
    return lambda: _cells.remove(current)


def calling_cell() -> CallingCell | None:
    """Return the cell that executes, or has last; None when this is no notebook."""
    return _cells[-1]() if _cells else None


MakePanel = Callable[[Any], Any]
"""Makes a live panel of a reservation, or of a mesh: an object that the notebook displays."""

_makers: list[MakePanel] = []
_held: list[Callable[[], Any]] = []
_notebooks: list[str] = []


def serve_notebook(path: str) -> Callable[[], None]:
    """Let runs say that they come from a notebook; returns what ends that."""
    _notebooks.append(path)
    return lambda: _notebooks.remove(path)


def served_notebook() -> str:
    """Return the path of the notebook; empty when there is none, or nobody knows it."""
    return _notebooks[-1] if _notebooks else ""


def where_here() -> str:
    """Return where what is asked for here is asked for: "in eval.ipynb", "by train.py"."""
    if notebook := served_notebook():
        return f"in {os.path.basename(notebook)}"
    if calling_cell() is not None:
        return "in a notebook"
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    return f"by {program}" if program not in ("", "-c") else "by a Python program"


def hold_for_notebook(held: Callable[[], Any]) -> Callable[[], None]:
    """Have the reservation that `held` returns (or None) meant where none is named; returns what ends that."""
    _held.append(held)
    return lambda: _held.remove(held)


def held_by_notebook() -> Any:
    """Return the reservation that the notebook holds; None when it holds none, or there is no notebook."""
    return _held[-1]() if _held else None


def whence_here() -> str:
    """Return from where what is done here comes: "from eval.ipynb", "from train.py"."""
    return f"from {where_here().partition(' ')[2]}"


def name_here(number: int, cell_number: int, notebook: str, owner: str = "") -> str:
    """Return what a run is called here: "run 46, cell [12]", of another notebook "run 46, cell [12] of b.ipynb", and of
    somebody else "bob's run 46, cell [12] of b.ipynb"."""
    elsewhere = "" if notebook == served_notebook() else os.path.basename(notebook)
    return run_name(number, cell_number, notebook=elsewhere, owner=owner)


def present_with(make: MakePanel) -> Callable[[], None]:
    """Have panels made by `make`; returns what ends that."""
    _makers.append(make)
    return lambda: _makers.remove(make)


def panel_of(held: object) -> Any:
    """Return a live panel of a reservation, or of a mesh.

    Raises:
        UsageError: this is no notebook, or one without the extension.
    """
    if not _makers:
        raise UsageError("a panel needs a notebook with the extension: %load_ext monarch_nb")
    return _makers[-1](held)
