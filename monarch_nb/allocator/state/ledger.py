"""Who held how much of a node, for how long, and how much of that nobody used, by the record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from monarch_nb.proto import allocator_pb2 as pb

KEPT_S = 366 * 86400.0
"""What ended longer ago is forgotten: no question goes back further."""
RESERVED, HELD, RELEASED, EXPIRED, LOST = "reserved", "held", "released", "expired", "lost"


@dataclass
class Span:
    """A reservation's part of the node.

    Attributes:
        known: until when it is known that it was held. ended: when it was released; None while it is held.
        busy_s: for how long it was used.
    """

    owner: str
    gpus: int
    begun: float
    known: float
    ended: float | None = None
    busy_s: float = 0.0


class Ledger:
    """The reservations of a node, those that are held and those that were.

    Example:
        >>> ledger = Ledger()
        >>> ledger.note({"time": "2026-11-26T08:00:00Z", "event": "reserved", "reservation": "r", "owner": "alice"})
        >>> round(ledger.used(0.0, ledger.span("r").begun + 7200.0)[0].node_s)
        7200
    """

    def __init__(self) -> None:
        self._open: dict[str, Span] = {}
        self._ended: list[Span] = []
        self.known_since = 0.0
        """When the first of what it knows was written; 0: nothing is known."""

    def note(self, event: Mapping[str, Any]) -> None:
        """Take a line of the record in; what is none, or has nothing to do with hours, changes nothing."""
        try:
            at, kind, reservation_id = seconds(event["time"]), event["event"], str(event.get("reservation", ""))
            self.known_since = min(self.known_since or at, at)
            if kind == RESERVED and reservation_id not in self._open:
                self._open[reservation_id] = Span(str(event["owner"]), int(event.get("gpus", 0)), at, at)
            elif kind in (HELD, RELEASED, EXPIRED, LOST) and (span := self._open.get(reservation_id)):
                span.known, span.busy_s = max(span.known, at), max(span.busy_s, float(event.get("busy_s", 0.0)))
                if kind != HELD:
                    self._end(reservation_id, span.known)
        except (KeyError, TypeError, ValueError):
            return

    def used_for(self, reservation_id: str, busy_s: float) -> None:
        """A reservation was used for some more time."""
        if span := self._open.get(reservation_id):
            span.busy_s += busy_s

    def span(self, reservation_id: str) -> Span | None:
        """Return what is known of a reservation that is held."""
        return self._open.get(reservation_id)

    def lost(self, held: Iterable[str]) -> list[str]:
        """Return the reservations that are held by the record alone, and end them when it last knew of them: a machine
        that went down has written no line of their end.

        Args:
            held: those that are held.
        """
        gone = [reservation_id for reservation_id in self._open if reservation_id not in set(held)]
        for reservation_id in gone:
            self._end(reservation_id, self._open[reservation_id].known)
        return gone

    def _end(self, reservation_id: str, at: float) -> None:
        span = self._open.pop(reservation_id)
        span.ended = at
        self._ended.append(span)
        if self._ended[0].ended is not None and self._ended[0].ended < at - KEPT_S:
            self._ended = [one for one in self._ended if one.ended is not None and one.ended >= at - KEPT_S]

    def used(self, since: float, now: float) -> list[pb.Used]:
        """Return what people have held between two times. Nobody knows when within a reservation it was used: its time
        of no use is spread over all of it."""
        sums: dict[str, pb.Used] = {}
        for span in [*self._ended, *self._open.values()]:
            end = now if span.ended is None else span.ended
            within_s = min(end, now) - max(span.begun, since)
            if within_s <= 0:
                continue
            idle_s = within_s * (1 - min(1.0, span.busy_s / (end - span.begun)))
            told = sums.setdefault(span.owner, pb.Used(owner=span.owner))
            told.reservations += 1
            told.node_s += within_s
            told.gpu_s += within_s * span.gpus
            told.idle_node_s += idle_s
            told.idle_gpu_s += idle_s * span.gpus
        return list(sums.values())


def seconds(text: str) -> float:
    """Return the time that a line of the record has, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def stamp(at: float) -> str:
    """Return a time as lines of the record have it.

    Example:
        >>> stamp(0.0)
        '1970-01-01T00:00:00.000Z'
    """
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
