"""`%mesh on`: every following cell runs on the mesh, until `%mesh off`.

An input transformer puts a `%%mesh` line before the cell, so the rest is what that magic does. `%mesh` lines at the end
of a cell belong to the kernel, as everywhere, and come after it. `%%local` at the top of
a cell is taken away by the same transformer, so that the cell is an ordinary one in every respect.
"""

from __future__ import annotations

import re
from typing import Any

from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.notebook.syntax.declarations import MESH

_OURS = re.compile(r"\s*(%mesh\b|%(re|un)?load_ext\s+monarch_nb\b|\w[\w\s,.\[\]]*=\s*%mesh\b)")
_OURS_AT_THE_END = re.compile(r"%mesh(\s|$)|\w[\w\s,.\[\]]*=\s*%mesh\s")
_EMPTY = re.compile(r"%%mesh(?!\w)")
_WITHOUT_PERCENT = re.compile(rf"mesh[ \t]+({'|'.join(command.name for command in MESH.commands)})\b")
"""What IPython takes for a magic by itself, but not where `mesh` is a variable. It is never Python."""
_LOCAL = re.compile(r"%%local\s*$")
ANNOUNCE = "--announce"
"""The flag by which `%%mesh` knows that the user did not write it."""


class MeshMode:
    """The switch behind `%mesh on` and `off`, and the input transformer that acts on it.

    Attributes:
        on: whether cells run on the mesh.
        targets: the ranks on which they run, as `-t` takes them; None for all.
        mesh: the name of the one on which they run; None for the main mesh.
        visible: whether the cell that executes now is one of the user's: front ends also execute code of their own,
            without history, and that belongs to the kernel.
    """

    has_side_effects = True  # keeps IPython from transforming what the user is still typing

    def __init__(self) -> None:
        self.on = False
        self.targets: str | None = None
        self.mesh: str | None = None
        self.visible = False
        self._depth = 0

    def start(self, targets: str | None, mesh: str | None = None) -> None:
        """Run every following cell on the mesh."""
        self.on, self.targets, self.mesh = True, targets.replace(" ", "") if targets else None, mesh

    def stop(self) -> None:
        """Run cells in the kernel again."""
        self.on, self.targets, self.mesh = False, None, None

    def __call__(self, lines: list[str]) -> list[str]:
        """Transform a cell, as IPython's input transformers do."""
        if not lines:
            return lines
        if len(lines) == 1 and _WITHOUT_PERCENT.match(lines[0]):
            lines = [f"%{lines[0]}"]
        if _LOCAL.match(lines[0]):
            # A blank line keeps the line numbers of tracebacks right; another cell magic must stand first.
            return lines[1:] if lines[1:] and lines[1].startswith("%%") else ["\n", *lines[1:]]
        if len(lines) == 1 and _EMPTY.match(lines[0]):
            return [*lines, "\n"]  # IPython refuses a cell without a body, in words of its own
        # Inside a cell that executes, IPython transforms pieces of code too (%timeit does): those are not cells.
        if not self.on or self._depth > 0 or is_ours(lines):
            return lines
        arguments = f"{ANNOUNCE}{mesh_flag(self.mesh or '')}"
        arguments += f" --targets={self.targets}" if self.targets else ""
        end = _our_end(lines)
        if end == len(lines):
            return [f"%%mesh {arguments}\n", *lines]
        body = "".join(lines[:end])
        return [f"get_ipython().run_cell_magic('mesh', {arguments!r}, {body!r})\n", *lines[end:]]

    def pre_execute(self) -> None:
        """A cell, or a piece of one, begins."""
        if self._depth == 0:
            self.visible = False
        self._depth += 1

    def pre_run_cell(self, info: Any) -> None:
        """As `pre_execute`, for everything but silent code."""
        if self._depth == 1:
            self.visible = bool(getattr(info, "store_history", True))

    def post_execute(self) -> None:
        """It ended. Also called for empty cells, which never began."""
        self._depth = max(0, self._depth - 1)


def _our_end(lines: list[str]) -> int:
    """Return where the `%mesh` lines at the end of a cell begin: its length when there are none."""
    end = len(lines)
    if lines[0].startswith("%%"):  # the whole cell is that magic's
        return end
    for index in range(len(lines) - 1, 0, -1):
        if _OURS_AT_THE_END.match(lines[index]):
            end = index
        elif lines[index].strip() and not lines[index].startswith("#"):
            break
    return end


def is_ours(lines: list[str]) -> bool:
    """Return whether a cell must not go to the mesh: it is one of our magics, or it loads us."""
    if lines[0].startswith(("%%mesh", "%%local")):
        return True
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            return _OURS.match(line) is not None
    return True
