"""Text in a terminal that takes the place of what was shown before."""

from __future__ import annotations

import shutil
import sys

from monarch_nb.ground.printing import put


class TerminalScreen:
    """Shows texts on stdout, each in the place of the last one; in a pipe one below the other."""

    def __init__(self) -> None:
        self._lines = 0

    def show(self, text: str) -> None:
        """Show a text of a few lines."""
        lines, back = text.splitlines(), ""
        if sys.stdout.isatty():
            columns = shutil.get_terminal_size().columns
            lines = [line[:columns] for line in lines]  # a line that is wrapped would be several
            back = f"\x1b[{self._lines}A\x1b[J" if self._lines else ""
        self._lines = len(lines)
        put(back + "".join(f"{line}\n" for line in lines))
