"""Text in a terminal that takes the place of what was shown before."""

from __future__ import annotations

import sys


class TerminalScreen:
    """Shows texts on stdout, each in the place of the last one; in a pipe one below the other."""

    def __init__(self) -> None:
        self._lines = 0

    def show(self, text: str) -> None:
        """Show a text of a few lines."""
        back = f"\x1b[{self._lines}A\x1b[J" if self._lines and sys.stdout.isatty() else ""
        self._lines = text.count("\n") + 1
        sys.stdout.write(f"{back}{text}\n")
        sys.stdout.flush()
