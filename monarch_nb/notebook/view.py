"""The output of one run in its cell: updated in place, calmly, whatever the ranks print."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from monarch_nb.client.events import Event, Finished
from monarch_nb.notebook.fold import Fold, members
from monarch_nb.notebook.render import Group, plain_ending, plain_lines, render
from monarch_nb.shape import name_ranks

FIRST_UPDATE_S = 0.02
"""The first output is shown this much after it came, so that a short cell is shown once."""
UPDATE_S = 0.1
STATUS_AFTER_S = 2.0
"""A cell that takes less time gets no line about itself."""
_RENDER_SHARE = 10
_BYTES_PER_S = 2_000_000


class Publish(Protocol):
    """Shows a MIME bundle; `update`: in place of the one before."""

    def __call__(self, bundle: dict[str, str], update: bool) -> None: ...


class RunView:
    """Shows what a run prints, displays and returns.

    In a notebook the whole output is one display that is updated in place. The caller makes `publish`:

        display_id = secrets.token_hex(8)

        def publish(bundle: dict[str, str], update: bool) -> None:
            publish_display_data(bundle, transient={"display_id": display_id}, update=update)

    Where a first display lands depends on which cell runs when it is published. So a cell that waits for its run calls
    `close()` when the run is over, before it returns; and a cell that does not wait (`--noblock`) calls `open()`
    before it returns. Updates find their cell from any thread and at any time.

        view = RunView(run.ranks, publish, client.call_later)
        run.add_listener(view.on_event)
        try:
            run.result()
        finally:
            view.close()

    A cell that shows nothing and returns nothing publishes nothing, so that it has no empty output area.

    Thread-safe: events come on the client's background thread, `open` and `close` on the cell's.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        publish: Publish,
        call_later: Callable[[float, Callable[[], None]], Any],
        *,
        group: Group = "order",
        show_failures: bool = False,
        stream: bool = True,
        terminal: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a view; nothing is shown yet.

        Args:
            ranks: the run's ranks.
            publish: shows a bundle of text/html and text/plain (in terminals of text/plain only).
            call_later: `call_later(delay_s, callback)` calls `callback` later, on some thread.
            group: how the output is ordered; see `render`.
            show_failures: show the tracebacks of failed ranks; False when the cell raises them.
            stream: False to show everything once, at the end.
            terminal: displays can not be updated: print only what is new, as it gets final.
            clock: seconds, for tests.
        """
        self._fold = Fold(ranks)
        self._publish, self._call_later, self._clock = publish, call_later, clock
        self._group, self._show_failures = group, show_failures
        self._stream, self._terminal = stream, terminal
        self._lock = threading.Lock()
        self._started_s = clock()
        self._ended_s: float | None = None
        self._opened = self._published = self._closed = False
        self._dirty = False
        self._wake_s: float | None = None  # when the earliest wake-up comes
        self._not_before_s = self._started_s + FIRST_UPDATE_S
        if stream and not terminal:
            with self._lock:
                self._wake_at(self._started_s + STATUS_AFTER_S)

    def on_event(self, event: Event) -> None:
        """Take in an event of the run; show it now or soon."""
        with self._lock:
            now_s = self._clock()
            self._fold.add(event, now_s)
            if not self._dirty and not self._published:
                self._not_before_s = max(self._not_before_s, now_s + FIRST_UPDATE_S)
            self._dirty = True
            if isinstance(event, Finished):
                self._ended_s = now_s
                if self._opened:
                    self._show(now_s)
                    return
            if self._stream or self._opened and self._ended_s is not None:
                self._wake_at(self._not_before_s)

    def open(self) -> None:
        """Show the run now, from the cell that started it and does not wait for it."""
        with self._lock:
            self._opened = True
            self._show(self._clock())

    def close(self) -> None:
        """Show the final state. Output that comes later still updates what was shown."""
        with self._lock:
            if self._closed:
                return
            now_s = self._clock()
            if self._ended_s is None and self._fold.finished:
                self._ended_s = now_s
            self._closed = True
            self._show(now_s)

    # ---- under the lock ----

    def _wake_at(self, when_s: float) -> None:
        if self._wake_s is not None and self._wake_s <= when_s:
            return
        self._wake_s = when_s
        self._call_later(max(0.0, when_s - self._clock()), self._wake)

    def _wake(self) -> None:
        with self._lock:
            now_s = self._clock()
            if self._wake_s is None or now_s < self._wake_s - 0.001:
                return  # an earlier wake-up took this one's place
            self._wake_s = None
            if self._closed and not self._published:
                return  # its cell is over and showed nothing: a first display would land in another cell
            if self._dirty and now_s < self._not_before_s - 0.001:
                self._wake_at(self._not_before_s)
            elif self._dirty or self._ended_s is None:
                self._show(now_s)

    def _show(self, now_s: float) -> None:
        self._dirty = False
        size_bytes = self._print_new(now_s) if self._terminal else self._update(now_s)
        took_s = self._clock() - now_s
        self._not_before_s = now_s + max(UPDATE_S, _RENDER_SHARE * took_s, size_bytes / _BYTES_PER_S)
        if self._stream and not self._closed and self._ended_s is None:
            ...

    def _update(self, now_s: float) -> int:
        raise NotImplementedError

    def _print_new(self, now_s: float) -> int:
        raise NotImplementedError
