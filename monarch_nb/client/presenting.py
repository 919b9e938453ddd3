"""The notebook that this process serves: its extension says which it is, and how it shows what a client holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from monarch_nb.errors import UsageError
from monarch_nb.ground.code_names import run_name

MakePanel = Callable[[Any], Any]
"""Makes a live panel of a reservation, or of a mesh: an object that the notebook displays."""

_makers: list[MakePanel] = []
_notebooks: list[str] = []


def serve_notebook(path: str) -> Callable[[], None]:
    """Let runs say that they come from a notebook; returns what ends that."""
    _notebooks.append(path)
    return lambda: _notebooks.remove(path)


def served_notebook() -> str:
    """Return the path of the notebook; empty when there is none, or nobody knows it."""
    return _notebooks[-1] if _notebooks else ""


def name_here(number: int, cell_number: int, notebook: str) -> str:
    """Return what a run is called here: "run 46, cell [12]", or of another notebook "run 46, cell [12] of b.ipynb"."""
    return run_name(number, cell_number, notebook="" if notebook == served_notebook() else os.path.basename(notebook))


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
