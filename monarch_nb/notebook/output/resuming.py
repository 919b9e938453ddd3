"""Output that is followed from the middle: ranks are a few lines apart where it goes on, and are to be shown in step.

Lines that differ in their digits only are taken for one line of a program (`step 4`, `step 5`): of ranks that begin
apart, that would be wrong for ever. So the first lines are held until it is clear where each rank is (the one that is
behind most has come to where all the others begin), and then come rank by rank, those that are behind first.
"""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.client.connections.events import (
    ElidedOfMany,
    Event,
    Finished,
    LinesOfMany,
    Notice,
    Restart,
    Result,
    Text,
    TextOfMany,
)
from monarch_nb.config import cadence

HOLD_S = cadence(0.8)
"""So long at most. Ranks that are further apart in time are not taken for being in step."""


class Held:
    """The first events of a run that is followed from the middle."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._events: dict[int, list[Event]] = {rank: [] for rank in ranks}

    def add(self, event: Event) -> list[Event]:
        """Hold an event; return what need not be held any longer."""
        if isinstance(event, Notice):
            return [event]
        if isinstance(event, Restart | Finished):
            return [*self.release(), event]
        for one in event.parts() if isinstance(event, ElidedOfMany | LinesOfMany | TextOfMany) else [event]:
            self._events.setdefault(one.rank, []).append(one)
        return self.release() if self._is_clear() else []

    def _is_clear(self) -> bool:
        lines = [_lines(events) for events in self._events.values() if not (events and isinstance(events[-1], Result))]
        return all(lines) and (not lines or any(all(each[0] in behind for each in lines) for behind in lines))

    def release(self) -> list[Event]:
        """Return all that is held."""
        lines = {rank: _lines(events) for rank, events in self._events.items()}
        first = {rank: of_rank[0] for rank, of_rank in lines.items() if of_rank}
        behind = {rank: _behind(of_rank, first.values()) for rank, of_rank in lines.items()}
        order = sorted(self._events, key=lambda rank: (-behind[rank], rank))
        return [event for rank in order for event in self._events.pop(rank)]


def _lines(events: list[Event]) -> list[tuple[str, str]]:
    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event, Text):
            texts[event.stream] = texts.get(event.stream, "") + event.text
    return [(stream, line) for stream, text in texts.items() for line in text.split("\n")[:-1]]


def _behind(lines: list[tuple[str, str]], first: Iterable[tuple[str, str]]) -> int:
    """Return how many lines a rank has to say until it is where some other one begins."""
    return max((lines.index(line) for line in first if line in lines), default=0)
