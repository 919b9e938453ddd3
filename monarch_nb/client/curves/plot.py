"""Curves as an object: a picture for files, characters for terminals, text for everything else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.characters import WIDTH, characters
from monarch_nb.client.curves.drawing import Drawing, noted
from monarch_nb.client.curves.svg import svg
from monarch_nb.client.curves.words import RunPictures, text
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError

MAX_WIDTH = 120
"""Of a picture with characters, however wide a terminal is."""
CATCH_UP_S = patience(60.0)
"""So long a picture waits until all is read that was printed; it says how much that is."""


class Plot:
    """Curves of what ranks printed: see `Mesh.plot`. In a notebook with the extension a cell shows them live; `print`
    draws them with characters.

    Attributes:
        drawing: what reads them.

    Raises:
        UsageError: no line has a name that is wanted; the message has the nearest ones.

    Example:
        >>> plot = run.plot("loss")  # doctest: +SKIP
        >>> plot.save("loss.svg")  # doctest: +SKIP
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        call(drawing.begin())

    def svg(self) -> str:
        """Return the picture as SVG, light and dark, of all that is printed now."""
        return svg(self.drawn())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file as SVG.

        Raises:
            OSError: the file can not be written.
        """
        Path(path).write_text(self.svg(), encoding="utf-8")

    def drawn(self) -> list[RunPictures]:
        """Return what there is to draw of all that is printed now."""
        try:
            if not self.drawing.is_over:
                call(self._read(), CATCH_UP_S)
        except TimeoutError:  # the notes say how much is read
            pass
        except MonarchNbError as error:  # the mesh was released: the picture stays
            return noted(self.drawing.drawn(), str(error))
        return self.drawing.drawn()

    async def _read(self) -> None:
        await self.drawing.advance()
        await self.drawing.catch_up()

    def __str__(self) -> str:
        return characters(self.drawn())

    def __repr__(self) -> str:
        return characters(self.drawing.drawn())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the picture for notebooks that show nothing live, and the last values as text."""
        drawn = self.drawn()
        return {"image/svg+xml": svg(drawn), "text/plain": text(drawn)}


def drawn_for_terminal(plot: Plot) -> str:
    """Return a plot drawn with characters, as wide as the terminal, in colours where there is one."""
    columns = shutil.get_terminal_size((WIDTH, 0)).columns
    return characters(plot.drawn(), width=min(columns, MAX_WIDTH), colours=sys.stdout.isatty())
