"""What a run tells its listeners, in the order in which each rank did it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from monarch_nb.errors import RankFailure
from monarch_nb.lines.packing import opened

_log = logging.getLogger(__name__)

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text that a rank printed: any piece, not necessarily whole lines."""

    rank: int
    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class TextOfMany:
    """The same text of several ranks at once. Only a listener that is marked with `takes_many` is told so."""

    ranks: tuple[int, ...]
    stream: Stream
    text: str

    def parts(self) -> Iterator[Text]:
        """Yield what it says of each rank."""
        for rank in self.ranks:
            yield Text(rank, self.stream, self.text)

    def without(self, ranks: Collection[int]) -> TextOfMany | None:
        """Return what it says of other ranks than these; None when it says nothing."""
        left = tuple(rank for rank in self.ranks if rank not in ranks)
        return TextOfMany(left, self.stream, self.text) if left else None


@dataclass(frozen=True, slots=True)
class LinesOfMany:
    """Whole lines of several ranks that differ only in numbers. Only a listener that is marked with `takes_many` is
    told so.

    Attributes:
        text: as the first of the ranks wrote it.
        columns: of each line, what each of the ranks has in place of its numbers (`lines.packing`).
    """

    ranks: tuple[int, ...]
    stream: Stream
    text: str
    columns: str

    def parts(self) -> Iterator[Text]:
        """Yield what it says of each rank."""
        for rank in self.ranks:
            yield self.part(rank)

    def part(self, rank: int) -> Text:
        """Return what it says of one rank."""
        return Text(rank, self.stream, opened(self.text, self.columns, self.ranks.index(rank)))


@dataclass(frozen=True, slots=True)
class Elided:
    """Lines that were not forwarded because a rank printed faster than anyone reads; the log has them all."""

    rank: int
    stream: Stream
    lines: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ElidedOfMany:
    """The same for many ranks at once: of a flood on more ranks than anyone looks at, only a few are shown at all.

    Attributes:
        lines, sizes_bytes: of each of `ranks`.
    """

    ranks: tuple[int, ...]
    stream: Stream
    lines: tuple[int, ...]
    sizes_bytes: tuple[int, ...]

    def parts(self) -> Iterator[Elided]:
        """Yield what it says of each rank."""
        for rank, lines, size_bytes in zip(self.ranks, self.lines, self.sizes_bytes, strict=True):
            yield Elided(rank, self.stream, lines, size_bytes)

    def without(self, ranks: Collection[int]) -> ElidedOfMany | None:
        """Return what it says of other ranks than these; None when it says nothing."""
        left = [(part.rank, part.lines, part.size_bytes) for part in self.parts() if part.rank not in ranks]
        if not left:
            return None
        others, lines, sizes_bytes = zip(*left, strict=True)
        return ElidedOfMany(others, self.stream, lines, sizes_bytes)


@dataclass(frozen=True, slots=True)
class Display:
    """A figure, HTML or other rich output. `kind` is "show", "update" (of the same `display_id`) or "clear"."""

    rank: int
    kind: Literal["show", "update", "clear"]
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A rank finished the run. `bundle` is the last expression's MIME bundle, empty when there is none; `facts`: of its
    value, as `worker.shell.facts` finds them, when it is one of many ranks;
    `may_print_later`: it printed, or left a thread, task or process behind that may."""

    rank: int
    outcome: Literal["ok", "error", "interrupted", "died", "cancelled"]
    duration_s: float
    bundle: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    failure: RankFailure | None = None
    group_aborted: bool = False
    may_print_later: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that monarch_nb itself has to say about the run, e.g. who waits for whom. Replaces the notice before
    it of the same `key`; an empty text removes it."""

    text: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A thread of a rank has stopped at a breakpoint, or (not `on`) goes on. `stop` is its number on the rank."""

    rank: int
    stop: int
    on: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """All ranks of a script start again: what comes now is the next attempt's. `text` says why."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event: every rank has finished."""


QUEUE_NOTICE = "queue"
"""Key of the notice that the run waits for others; without a text: it has begun on some rank."""
LINE_NOTICE = "line"
"""Key of the notice that somebody waits in line for nodes like those of the run."""
TIME_NOTICE = "time"
"""Key of the notice that the reservation ends soon, or has ended."""

Event = (
    Text | TextOfMany | LinesOfMany | Elided | ElidedOfMany | Display | Result | Notice | Stopped | Restart | Finished
)


def takes_many(listener: Callable[..., None]) -> Callable[..., None]:
    """Mark a listener that understands TextOfMany and LinesOfMany; others are told each rank's text by itself."""
    listener.takes_many = True  # type: ignore[attr-defined]
    return listener


@runtime_checkable
class RunShown(Protocol):
    """What shows a run: a listener that is a method of such is told which run it is."""

    def shows(self, run: Any) -> None:
        """Note the run, which may have no number yet."""


def introduce(listener: Callable[[Event], None], run: Any) -> None:
    """Tell what a listener belongs to which run it hears of from the beginning: its rows lead to the run's log."""
    owner = getattr(listener, "__self__", None)
    if isinstance(owner, RunShown):
        owner.shows(run)


def wants_whole(listener: Callable[[Event], None]) -> bool:
    """Return whether nothing is to be left out of what a listener is told, as far as that is possible."""
    return bool(getattr(getattr(listener, "__self__", None), "wants_whole", False))


def tell(listener: Callable[[Event], None], event: Event) -> None:
    """Tell a listener of an event."""
    is_of_many = isinstance(event, TextOfMany | LinesOfMany) and not getattr(listener, "takes_many", False)
    for part in event.parts() if is_of_many and isinstance(event, TextOfMany | LinesOfMany) else (event,):
        try:
            listener(part)
        except Exception:  # noqa: BLE001 (a listener's fault must not cost the run its results)
            _log.exception("a listener failed at %r", part)
