"""A pool whose nodes are plain objects: the test says what they answer."""

from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.reservations import taking
from monarch_nb.errors import NodeUnreachable
from monarch_nb.panel import actions, live, requests, ways
from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

TIMEOUT_S = 10.0


class FakeNode:
    """A node, and the connection to it.

    Attributes:
        reply: what it says. asked: how often.
        found: as what it is found.
        alive: whether its allocator lives. hangs: it does not answer. refuses: it can not be reached, for a reason.
        late_s: after how long it answers.
    """

    def __init__(self, reply: pb.StatusReply) -> None:
        self.name = self.found = self.address = self.node_address = reply.node.node_id
        self.reply, self.asked = reply, 0
        self.alive, self.hangs, self.refuses, self.late_s = True, False, False, 0.0
        self.reason = f"{self.name} does not answer"
        self.up, self.client_id, self.identity = True, "client", None

    def is_known_as(self, name: str, node_address: str) -> None:
        self.name = name

    def hold_session(self) -> None:
        """It is open, also when nobody holds it."""

    def let_go(self) -> None:
        """As `hold_session`."""

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        if method == "Undertake":
            return pb.UndertakeReply()
        if method == "Release":
            kept = [each for each in self.reply.reservations if each.reservation_id != request.reservation_id]
            del self.reply.reservations[:]
            self.reply.reservations.extend(kept)
            return pb.ReleaseReply()
        assert (method, request.readings) == ("Status", True)
        self.asked += 1
        if self.refuses:
            raise NodeUnreachable(self.reason, self.name)
        if self.hangs:
            await asyncio.sleep(TIMEOUT_S * 10)
        await asyncio.sleep(self.late_s)
        return pb.StatusReply.FromString(self.reply.SerializeToString())


class FakePool(LocalProvisioner):
    """A pool and its provisioner at once."""

    def __init__(self, *replies: pb.StatusReply) -> None:
        self.name = "local"
        self.fakes = self._found = [FakeNode(reply) for reply in replies]

    def nodes(self, *, pool: str = "local") -> list[Node]:
        self._found = list(self.fakes)
        return [Node(fake.found, Path("/nowhere"), fake.address, 1 if fake.alive else None) for fake in self.fakes]

    def heal(self, *_: object, **__: object) -> None:
        """Its nodes stay as they are."""

    def connection_to(self, node: Node) -> FakeNode:
        return next(fake for fake in self._found if fake.found == node.node_id)

    async def reservations(self) -> list[HeldReservation]:
        held: dict[str, HeldReservation] = {}
        for fake in self.fakes:
            for status in fake.reply.reservations:
                one = held.setdefault(status.reservation_id, HeldReservation(status.reservation_id, {}))
                one.nodes[status.node_rank] = (fake, status)  # type: ignore[assignment]
        return list(held.values())


def panel_on(pool: FakePool, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Panel:
    """A panel that sees this pool only, and hardly looks by itself."""
    for module in (live, actions, taking):
        monkeypatch.setattr(module, "provisioner_of", lambda _: pool)
    monkeypatch.setattr(live, "BETWEEN_DELIVERIES_S", 0.001)
    monkeypatch.setattr(requests, "pool_object", lambda _: pool)
    monkeypatch.setattr(ways, "launcher_names", list)
    return Panel(**{"refresh_s": 3600.0, "notice_s": 7200.0, **options})


class Inbox:
    """Takes what a subscription delivers.

    Attributes:
        open: cleared, it takes nothing, as a browser on a slow connection.
    """

    def __init__(self) -> None:
        self._events: queue.Queue[Json] = queue.Queue()
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    async def deliver(self, events: list[Json]) -> None:
        for event in events:
            self._events.put(event)
        while not self.open.is_set():
            self.waiting.set()
            await asyncio.sleep(0.001)

    def any(self) -> Json:
        """Wait for the next event."""
        return self._events.get(timeout=TIMEOUT_S)

    def next(self, kind: str) -> Json:
        """Wait for the next event, which is to be of that kind."""
        event = self.any()
        assert event["type"] == kind, event
        return event

    @property
    def empty(self) -> bool:
        return self._events.empty()
