"""The output of one run in its cell: updated in place, calmly, whatever the ranks print."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb.client.advice import here, named_here, while_busy
from monarch_nb.client.connections.events import (
    QUEUE_NOTICE,
    Display,
    Elided,
    ElidedOfMany,
    Event,
    Finished,
    LinesOfMany,
    Notice,
    Result,
    Stream,
    Text,
    TextOfMany,
    takes_many,
)
from monarch_nb.config import cadence
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.lines.templates import FoldBy
from monarch_nb.notebook.output import displays
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.render import Bundle, Group, LogOf, arranged, plain_ending, plain_lines, render
from monarch_nb.notebook.output.resuming import HOLD_S, Held
from monarch_nb.notebook.output.rows import Row, TextRow, bits, size_of
from monarch_nb.notebook.output.terminal import MAX_LINE_CHARACTERS

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run

FIRST_UPDATE_S = cadence(0.02)
"""The first output is shown so much after it came: a short cell is shown once, whole."""
UPDATE_S = cadence(0.1)
STATUS_AFTER_S = cadence(2.0)
"""A cell that takes less time gets no line about itself."""
_SETTLE_S = cadence(0.25)
_EARLY_S = cadence(0.002)
_RENDERING_SHARE = 10
_BYTES_PER_S = 2_000_000
_NO_FAULT = ("interrupted", "cancelled")
"""Kinds of failures that are called what they are; of all others it is said that they failed."""


_NOTHING = Bundle({"text/html": "", "text/plain": ""}, {})


class Publish(Protocol):
    """Shows a MIME bundle as the display with that number; `update`: in place of what it showed before."""

    def __call__(
        self, bundle: dict[str, Any], update: bool, number: int = 0, metadata: dict[str, Any] | None = None
    ) -> None: ...


class RunView:
    """Shows what a run prints, displays and returns.

    In a notebook the output is a display that is updated in place; and more, where front ends show what is between
    lines (`render`). The cell makes `publish`:

        token = secrets.token_hex(16)

        def publish(bundle, update, number=0, metadata=None) -> None:
            transient = {"display_id": f"{token}-{number}"}
            publish_display_data(bundle, metadata, transient=transient, update=update)

    An update finds its cell from any thread and at any time; a first display lands in whichever cell runs when it is
    published. So the cell calls one of these two before it returns, on its own thread: `close` when the run is over,
    `keep_open` when the run goes on (`--noblock`, a timeout).

        view = RunView(run.ranks, publish, call_later)
        run.add_listener(view.on_event)
        try:
            run.result()
        finally:
            view.close()

    A run that shows nothing and returns nothing soon publishes nothing, so that its cell has no empty output area.

    Thread-safe: events come on the client's background thread.

    Attributes:
        hosts: the ranks of each node, by what it is called; empty as long as nobody has said it.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        publish: Publish,
        call_later: Callable[[float, Callable[[], None]], Any],
        *,
        by: FoldBy | None = None,
        group: Group = "order",
        show_failures: bool = False,
        stream: bool = True,
        terminal: bool = False,
        whole: bool = False,
        shown: Collection[int] | None = None,
        resumed: bool = False,
        of_calls: bool = False,
        cell: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a view; nothing is shown yet.

        Args:
            ranks: the run's ranks.
            publish: shows a bundle of text/html and text/plain; in terminals text/plain alone, to be printed.
            call_later: `call_later(delay_s, callback)` calls `callback` later, on any thread.
            by: in what lines of one row may differ; None for what is usual on so many ranks.
            group: how the output is ordered; see `render`.
            show_failures: show the tracebacks of failed ranks; False when the cell raises them.
            stream: False to show everything once, at the end.
            terminal: displays can not be updated; publish only what is new, once it can not change any more.
            whole: in a file or a pipe nothing is left out.
            shown: ranks whose output and values are shown; None for all. Of the others it is shown how much they
                write on stderr, and how those that fail end.
            resumed: the output is followed from the middle.
            cell: what the front end calls the cell in which it is shown.
            of_calls: it is what a cell calls of actors, which is told neither how long it takes nor how it ends.
            clock: seconds, for tests.
        """
        ranks = tuple(ranks)
        self.wants_whole = whole
        self._fold = Fold(ranks, by, longest=sys.maxsize if terminal else MAX_LINE_CHARACTERS, drops=not whole)
        self._held = Held(ranks) if resumed else None
        self._is_whole = not resumed
        self._run: Callable[[], Run | None] = lambda: None
        self._log: LogOf | None = None
        self._unshown = frozenset() if shown is None else frozenset(ranks) - frozenset(shown)
        self._fold.unasked = bits(self._unshown)
        self._aside: Counter[int] = Counter()  # lines on stderr of those, by rank
        self._publish, self._call_later, self._clock = publish, call_later, clock
        self._group, self._show_failures, self._of_calls = group, show_failures, of_calls
        # A terminal can not put lines between others: it shows arranged output at the end.
        self._stream, self._terminal = stream and not (terminal and group != "order"), terminal
        self.hosts: Mapping[str, Sequence[int]] = {}
        self.cell, self._mesh_id = cell, ""
        self._lock = threading.Lock()
        self._started_s = clock()
        self._since_s = self._started_s  # it waits, or goes on
        self._waits = self._has_begun = False
        self._duration_s = 0.0  # of the slowest rank
        self._may_print_later = False
        self._over_s: float | None = None
        self._left = False  # the cell that the output belongs to has returned
        self._kept_open = False
        self._shown: list[Bundle] = []
        self._status_shown = False
        self._moved_to = ""
        self._told: set[str] = set()  # notices, in terminals
        self._ending_told = False
        self._dirty = False
        self._not_before_s = 0.0
        self._wake_s: float | None = None
        with self._lock:
            self._schedule(self._started_s)

    def shows(self, run: Run) -> None:
        """Say which run it is, once it has been submitted: its folded rows open from the logs. Rows of output that is
        followed from the middle do not: nobody counted the lines before."""
        self._run = weakref.ref(run)  # which refers to this view
        self._mesh_id = run.mesh.id

    def _log_of(self) -> LogOf | None:
        """Return where the run's lines are in the logs, as soon as it has its number."""
        run = self._run()
        if self._log is None and run is not None and run.number:
            flag = f"{named_here(run.mesh.reservation.name)}{run.mesh.flag}"
            self._log = LogOf(run.mesh.id, run.number, flag, self._is_whole)
        return self._log

    @takes_many
    def on_event(self, event: Event) -> None:
        """Take in an event of the run; it shows soon."""
        if self._unshown and isinstance(event, TextOfMany | LinesOfMany):
            for part in event.parts():
                self.on_event(part)
            return
        if isinstance(event, Display) and self._passes_on(event):
            return
        shown = self._shown_of(event) if self._unshown else event
        with self._lock:
            now_s = self._clock()
            if shown is None:
                if not self._note_aside(event):
                    return
            elif self._held is None:
                self._fold.add(shown, now_s)
            else:
                self._add(self._held.add(shown), now_s)
            if not self._dirty:
                self._dirty = True
                self._not_before_s = max(self._not_before_s, now_s + FIRST_UPDATE_S)
            if not isinstance(event, Notice) or event.key == QUEUE_NOTICE:
                self._note_turn(event, now_s)
            if isinstance(event, Result) and not self._of_calls:
                self._duration_s = max(self._duration_s, event.duration_s)
                self._may_print_later |= event.may_print_later
            if isinstance(event, Finished):
                self._fold.add(Notice("", QUEUE_NOTICE), now_s)  # a turn that has not come never will
                self._end(now_s)
                if self._kept_open:
                    self._show(now_s)
            self._schedule(now_s)

    def _passes_on(self, event: Display) -> bool:
        """Give an update of what another cell shows to that cell; return whether there is one."""
        if self._terminal or event.display_id is None:
            return False
        if event.kind == "update" and not self._fold.shows_display(event):
            other = displays.view_of(self._mesh_id, event)
            if other is not None:
                other.on_event(event)
                return True
        displays.keep(self)
        return False

    def shows_display(self, mesh_id: str, display: Display) -> bool:
        """Return whether it shows what a display of a run on that mesh updates."""
        return mesh_id == self._mesh_id and self.can_add and self._fold.shows_display(display)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return self._fold.size_bytes

    def _shown_of(self, event: Event) -> Event | None:
        """Return what of an event is shown, None for nothing."""
        match event:
            case Text() | Elided() | Display() if event.rank in self._unshown:
                return None
            case ElidedOfMany():
                return event.without(self._unshown)
            case Result() if event.rank in self._unshown and event.bundle:
                return replace(event, bundle={})
            case _:
                return event

    def _note_aside(self, event: Event) -> bool:
        """Count what a rank that is not shown writes on stderr; return whether it did."""
        if isinstance(event, Text) and event.stream == "stderr":
            self._aside[event.rank] += event.text.count("\n")
        elif isinstance(event, Elided) and event.stream == "stderr":
            self._aside[event.rank] += event.lines
        return any(self._aside.values())

    @property
    def can_add(self) -> bool:
        """Whether what comes now is shown in its cell: that goes on, or has an output to be updated."""
        return not self._left or bool(self._shown) or self._terminal

    def keep_open(self) -> None:
        """Show the run now, on the thread of the cell: it returns, and the run goes on. Failures will be shown here,
        because the cell can not raise them any more."""
        with self._lock:
            self._kept_open = self._show_failures = True
            self._show(self._clock())
            self._left = True
            self._schedule(self._clock())

    def close(self, *, may_print_later: bool = False) -> None:
        """Show the final state, on the thread of the cell, which returns. Output that comes later is still added, where
        something is shown, or `may_print_later` or a result says that it may come."""
        with self._lock:
            now_s = self._clock()
            self._may_print_later |= may_print_later
            self._release(now_s)
            self._fold.add(Finished(), now_s)
            self._end(now_s)
            self._show(now_s)
            self._left = True

    def leave(self, text: str) -> None:
        """Show no more of the run, which goes on: `text` says where."""
        with self._lock:
            self._moved_to = text
            self._release(self._clock())
            self._fold.add(Finished(), self._clock())
            self._end(self._clock())
            if self._left:
                self._show(self._clock())

    # ---- when; all below under the lock ----

    def _add(self, events: list[Event], now_s: float) -> None:
        """Take in what came of the first events of a run that is followed from the middle."""
        for event in events:
            self._fold.add(event, now_s)
        if any(not isinstance(event, Notice) for event in events):
            self._held = None

    def _note_turn(self, event: Event, now_s: float) -> None:
        """It waits for its turn, until that has come or it has begun on some rank."""
        if isinstance(event, Notice) and event.text:
            self._waits = not self._has_begun
        elif self._waits and not isinstance(event, Finished):
            self._waits, self._since_s = False, now_s
        self._has_begun |= not isinstance(event, Notice)

    def _release(self, now_s: float) -> None:
        if self._held is not None:
            self._add(self._held.release(), now_s)
            self._held = None

    def _end(self, now_s: float) -> None:
        if self._over_s is None:
            self._over_s = now_s

    @property
    def _over(self) -> bool:
        return self._over_s is not None

    def _schedule(self, now_s: float) -> None:
        """Make sure to wake up when there is something to show next."""
        if self._wake_s is not None and self._wake_s <= self._not_before_s:
            return
        if self._left and not self._kept_open and not self._shown and not self._terminal:
            return  # a first display would land in another cell
        wakes = []
        if self._held is not None:
            wakes.append(self._started_s + HOLD_S)
        if self._dirty and (self._stream or (self._over and self._kept_open)):
            wakes.append(self._not_before_s)
        if self._stream and not (self._over or self._terminal or self._of_calls):
            wakes.append(self._next_status_s(now_s))
        if self._terminal and self._stream and self._fold.waiting():
            wakes.append(now_s + _SETTLE_S)
        if wakes and (self._wake_s is None or min(wakes) < self._wake_s):
            self._wake_s = min(wakes)
            self._call_later(max(0.0, self._wake_s - now_s), self._wake)

    def _wake(self) -> None:
        with self._lock:
            now_s = self._clock() + _EARLY_S
            if self._wake_s is None or now_s < self._wake_s:
                return  # an earlier one has done it
            self._wake_s = None
            if not self._dirty or now_s >= self._not_before_s:
                self._show(now_s)
            self._schedule(now_s)

    def _next_status_s(self, now_s: float) -> float:
        elapsed_s = max(now_s - self._since_s, STATUS_AFTER_S - 1)
        step_s = _status_step_s(elapsed_s)
        return self._since_s + (elapsed_s // step_s + 1) * step_s

    # ---- what ----

    def _show(self, now_s: float) -> None:
        self._dirty = False
        if now_s >= self._started_s + HOLD_S:
            self._release(now_s)
        began_s = self._clock()
        size = self._print_new(now_s) if self._terminal else self._update(now_s)
        pause_s = max(UPDATE_S, _RENDERING_SHARE * (self._clock() - began_s), size / _BYTES_PER_S)
        if self.wants_whole:  # what waits here fills the memory
            pause_s = UPDATE_S
        self._not_before_s = began_s + pause_s

    def _update(self, now_s: float) -> int:
        """Publish what is new in the notebook; return its size."""
        before = self._shown
        most = max(1, len(before)) if self._left else sys.maxsize
        shown = render(
            self._fold,
            group=self._group,
            failures=self._tells_failures(now_s),
            status=self._status(now_s),
            notices=self._notices(),
            aside=self._told_aside(),
            status_alone=self._kept_open or bool(before) or not self._over,
            hosts=self.hosts,
            log=self._log_of(),
            most=most,
        )
        if self._over and self._may_print_later and len(shown) % 2 == 0 and len(shown) < most:
            shown.append(_NOTHING)  # ours, where a later line finds its cell
        shown += [_NOTHING] * (len(before) - len(shown))  # cleared
        size = 0
        for number, bundle in enumerate(shown):
            is_there = number < len(before)
            if not is_there or bundle != before[number]:
                self._publish(bundle.data, is_there, number, bundle.metadata)
                size += size_of(bundle.data)
        self._shown = shown
        return size

    def _told_aside(self) -> str:
        """Return what there is to say of ranks that are not shown."""
        ranks = sorted(+self._aside)
        if not ranks:
            return ""
        lines = f"{counted(self._aside.total(), 'line')} on stderr of {name_ranks(ranks)}"
        log = self._log_of()
        command = log.command if log else "%mesh logs"
        return here(f"… {lines} not shown: `{command}` has them, `%mesh show all` shows all ranks'")

    def _tells_failures(self, now_s: float) -> bool:
        """Return whether tracebacks are shown: also those that the cell raises, until it does."""
        if self._of_calls:  # who called raises them
            return False
        return self._show_failures or (now_s - self._started_s >= STATUS_AFTER_S and not self._over)

    def _notices(self) -> list[str]:
        """Return what monarch_nb has to say: of a cell that keeps the kernel busy, also who can act on that."""
        notices = self._fold.notices.values()
        if not notices or self._over or self._left or self._kept_open:
            return [*map(here, notices)]
        run = self._run()
        return while_busy(notices, run.mesh.reservation.name if run else "")

    def _print_new(self, now_s: float) -> int:
        """Publish the lines that have become final, in a terminal; return their size."""
        if not self._stream and not self._over:
            return 0
        parts: list[tuple[Stream, str]] = []
        for stream, rows in groupby(arranged(self._fold.take(now_s), self._group), _stream_of):
            parts.append((stream, plain_lines([*rows], self._fold.ranks, colours=True, log=self._log_of())))
        for notice in self._notices():
            if notice not in self._told:
                self._told.add(notice)
                parts.append(("stderr", notice))
        if self._over and not self._ending_told:
            self._ending_told = True
            results, failures = plain_ending(self._fold, self._show_failures, self._log_of(), whole=self.wants_whole)
            ending: list[tuple[Stream, str]] = [
                ("stderr", self._told_aside()),
                ("stdout", results),
                ("stderr", here(failures)),
            ]
            parts += [part for part in ending if part[1]]
        for stream, of_stream in groupby(parts, itemgetter(0)):
            self._publish({"text/plain": "\n".join(text for _, text in of_stream)}, False, metadata={"name": stream})
        return sum(len(text) for _, text in parts)

    def _status(self, now_s: float) -> str:
        if self._of_calls:
            return ""
        ranks, failures = self._fold.ranks.bit_count(), self._fold.failures.values()
        good = self._fold.ended.bit_count() - len(failures)
        elapsed_s = (now_s if self._over_s is None else self._over_s) - self._since_s
        if self._over and self._duration_s:
            elapsed_s = self._duration_s
        self._status_shown |= elapsed_s >= STATUS_AFTER_S or self._kept_open
        if not self._status_shown:
            return ""
        on = counted(ranks, "rank")
        kinds = Counter(failure.kind if failure.kind in _NO_FAULT else "failed" for failure in failures)
        failed = "".join(f" · {kinds[kind]} {kind}" for kind in ("failed", *_NO_FAULT) if kinds[kind])
        if self._moved_to:
            return f"{on} · {self._moved_to}"
        if self._over:
            took = "" if kinds["cancelled"] == ranks else f" · {_duration(elapsed_s)}"
            return "" if self._waits else f"{on}{took}{failed}"  # its turn never came: the error says why
        step_s = _status_step_s(elapsed_s)
        time_passed = f" · {_duration(elapsed_s // step_s * step_s)}" if elapsed_s >= 1 else ""
        if self._waits:
            return f"queued{time_passed}"
        finished = f" · {good} finished" if good else ""
        return f"● running on {on}{time_passed}{finished}{failed}"


def _stream_of(row: Row) -> Stream:
    return "stderr" if isinstance(row, TextRow) and row.stream == "stderr" else "stdout"


def _status_step_s(elapsed_s: float) -> int:
    """Return how often the time is told: seldom enough that one can select text in the output meanwhile."""
    return 1 if elapsed_s < 10 else 10 if elapsed_s < 120 else 60


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes = round(seconds) // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
