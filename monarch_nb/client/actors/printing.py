"""What actors print, in a script: whole lines, each with the rank that has printed it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.terminal import SCREEN
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.printed import PrintedLines
from monarch_nb.client.runs.run import Listener


class Printing:
    """Prints what actors of ranks print: stdout to stdout, stderr to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def listener(self, ranks: Iterable[int], mesh: str) -> Listener:
        """As Audience's."""
        return PrintedLines(self._lock, ranks, mesh="" if mesh == "main" else f"{mesh} ").on_event

    def finished(self, run: CallsRun) -> None:
        """A run was printed to its end."""
        run.collected()

    def screen(self) -> Screen:
        """Return the terminal."""
        return SCREEN

    def tell(self, text: str) -> None:
        """Tell people something."""
        with self._lock:
            sys.stderr.write(f"{text}\n")
