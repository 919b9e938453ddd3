"""Lines that say what goes on, updated in place, and in the end what came of it.

`Progress` shows at once and counts the seconds. `LateProgress` is for transfers: it has a bar, and appears only when
they take long.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.config import cadence
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.printing import put
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.output.tables import calm_line, is_notebook, show, show_updatable
from monarch_nb.sizes import size
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


BAR_WIDTH = 20
PATIENCE_S = cadence(0.5)
"""What takes less needs no progress."""
DRAW_EVERY_S = cadence(0.1)
STEADY_S = cadence(0.3)
"""Before that a rate says nothing."""
FILES_INTERRUPTED = "interrupted before all files were sent; files that arrived are not sent again"
LONG_S = cadence(5.0)
"""Who waits longer may want to stop it."""


class LateProgress:
    """A line that appears once there is something to wait for, and in the end says what came of it."""

    def __init__(self, shell: InteractiveShell, interrupted: str = FILES_INTERRUPTED) -> None:
        """Args: interrupted: what is said when Ctrl-C ends it."""
        self._interrupted = interrupted
        self._in_place = is_notebook(shell)
        self._progress: Progress | None = None
        self._began = self._drawn = time.monotonic()
        self._what = ""
        self._is_long = False

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, stack: object) -> None:
        if self._progress is not None:
            if kind is not None:
                self._progress.done(f"stopped while {self._what}")
            self._progress.__exit__(None, None, None)
        if kind is KeyboardInterrupt:
            raise RunInterrupted(self._interrupted) from None

    @property
    def shown(self) -> bool:
        """Whether there is a line."""
        return self._progress is not None

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """Show how far it is: what comes first at once if it has no measure, as nobody knows how long it takes."""
        now = time.monotonic()
        is_first = not self._what
        if what != self._what:
            self._what, self._began = what, now
        at_once = is_first and not total_bytes
        if not at_once and now - self._drawn < (DRAW_EVERY_S if self.shown else PATIENCE_S):
            if self._progress is not None and not total_bytes:
                self._progress.soon(what)  # it may be the last that is heard for long
            return
        self._drawn = now
        if self._progress is None:
            self._progress = Progress(self._in_place).__enter__()
        if total_bytes:
            elapsed_s = now - self._began
            self._is_long = self._is_long or elapsed_s + _left_s(done_bytes, total_bytes, elapsed_s) > LONG_S
            line = bar(what, done_bytes, total_bytes, elapsed_s)
            self._progress.show(f"{line}; ■ (Ctrl-C) stops it" if self._is_long else line)
        else:
            self._progress(what)

    def done(self, text: str) -> None:
        """Show what came of it, in place of the line."""
        if self._progress is not None:
            self._progress.done(text)
        else:
            show(calm_line(text))


def bar(what: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """Return a progress line with rate and remaining time.

    Example:
        >>> bar("sending files", 25_000_000, 100_000_000, 0.5)
        'sending files █████░░░░░░░░░░░░░░░ 25 MB of 100 MB, 50 MB/s, 1.5 s left'
    """
    filled = round(min(1.0, done_bytes / total_bytes) * BAR_WIDTH)
    drawn = "█" * filled + "░" * (BAR_WIDTH - filled)
    line = f"{what} {drawn} {size(done_bytes)} of {size(total_bytes)}"
    if elapsed_s < STEADY_S:
        return line
    left_s = _left_s(done_bytes, total_bytes, elapsed_s)
    left = f", {duration(left_s)} left" if left_s > 0 else ""
    return f"{line}, {size(round(done_bytes / elapsed_s))}/s{left}"


def _left_s(done_bytes: int, total_bytes: int, elapsed_s: float) -> float:
    """Return how long the rest will take; 0 as long as that can not be told."""
    return (total_bytes - done_bytes) * elapsed_s / done_bytes if done_bytes and elapsed_s >= STEADY_S else 0.0
