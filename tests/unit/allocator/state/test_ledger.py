"""Hours, as the lines of the record tell them."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.allocator.state.ledger import Ledger, stamp
from monarch_nb.proto import allocator_pb2 as pb

HOUR_S = 3600.0


def event(hour: float, kind: str, reservation: str = "r", **facts: Any) -> dict[str, Any]:
    return {"time": stamp(hour * HOUR_S), "event": kind, "reservation": reservation, **facts}


def used(ledger: Ledger, since: float, now: float) -> dict[str, pb.Used]:
    return {one.owner: one for one in ledger.used(since * HOUR_S, now * HOUR_S)}


def test_hours_count_within_the_time_that_is_asked_for() -> None:
    ledger = Ledger()
    ledger.note(event(2, "reserved", owner="alice", gpus=4))
    assert used(ledger, 0, 5)["alice"].gpu_s == 12 * HOUR_S
    ledger.note(event(6, "released", busy_s=HOUR_S))
    assert used(ledger, 0, 99)["alice"].gpu_s == 16 * HOUR_S
    assert used(ledger, 4, 99)["alice"].node_s == 2 * HOUR_S
    assert used(ledger, 4, 99)["alice"].idle_node_s == pytest.approx(1.5 * HOUR_S), "spread over all of it"
    assert used(ledger, 6, 99) == {}
