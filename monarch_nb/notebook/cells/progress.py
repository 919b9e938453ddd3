"""One line that says what goes on and for how long, updated in place, and in the end what came of it."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from monarch_nb.config import cadence
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.printing import put
from monarch_nb.notebook.output.tables import calm_line, show, show_updatable
from monarch_nb.times import duration


class Progress:
    """A line in the cell: `progress("starting local pool")` shows "starting local pool… 1.2 s", counting on.

    Leaving the `with` block ends the counting; `done` shows the last line.

    Example:
        with Progress(in_place=True) as progress:
            reservation = reserve("dev", procs=4, progress=progress)
            progress.done("dev: ready")
    """

    def __init__(self, in_place: bool) -> None:
        """Args: in_place: the front end updates displays; else only a terminal's own line is rewritten."""
        self._in_place = in_place
        self._terminal = not in_place and sys.stdout.isatty()
        self._started_at = time.monotonic()
        self._lock = threading.Lock()
        self._text = ""
        self._final = self._is_later = False
        self._handle: Any = None
        self._left = Flag()
        self.messages: list[str] = []

    def __enter__(self) -> Self:
        if self._in_place or self._terminal:
            threading.Thread(target=self._count, name="monarch_nb progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._left.set()
        if kind is not None and not self._final and not self._is_later:
            self._show(f"{self._text} · stopped after {duration(self.elapsed_s)}" if self._text else "", final=True)

    def __call__(self, text: str) -> None:
        """Say what goes on now."""
        with self._lock:
            self._text = text.rstrip(". …")
            self.messages.append(text)
        self._show(self._line())

    def soon(self, text: str) -> None:
        """Say what goes on now if it lasts."""
        with self._lock:
            self._text, self._is_later = text, True

    def show(self, text: str) -> None:
        """Say how far it is; `text` counts by itself."""
        with self._lock:
            self._text = ""
        self._show(text)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started_at

    def done(self, last: object) -> None:
        """Show the last line, or anything else, in place of all before."""
        self._show(last, final=True)

    def _line(self) -> str:
        return f"{self._text}… {self.elapsed_s:.1f} s"

    def _count(self) -> None:
        while not self._left.wait(cadence(0.25)):
            if self._text:
                self._show(self._line())

    def _show(self, shown: object, final: bool = False) -> None:
        with self._lock:
            self._is_later = False
            if self._final or shown == "":
                return
            self._final = final
            line = calm_line(shown) if isinstance(shown, str) else shown
            if self._terminal:
                text = shown if isinstance(shown, str) else ""
                put(f"\r\x1b[2K{text}" + "\n" * (final and line is not shown))
                if line is shown:
                    show(line)
            elif self._in_place and self._handle is not None:
                self._handle.update(line)
            elif self._in_place:
                self._handle = show_updatable(line)
            elif final:
                show(line)
