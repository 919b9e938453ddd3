"""Hours, as the lines of the record tell them."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.allocator.state.ledger import KEPT_S, Ledger, stamp
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


def test_what_a_machine_held_that_went_down_ends_when_it_was_last_known() -> None:
    ledger = Ledger()
    ledger.note(event(1, "reserved", owner="alice"))
    ledger.note(event(1, "reserved", "kept", owner="bob"))
    ledger.note(event(3, "held", busy_s=HOUR_S))
    assert ledger.lost(["kept"]) == ["r"]
    told = used(ledger, 0, 9)
    assert (told["alice"].node_s, told["alice"].idle_node_s, told["bob"].node_s) == (2 * HOUR_S, HOUR_S, 8 * HOUR_S)


def test_old_reservations_are_forgotten_and_spoilt_lines_passed_over() -> None:
    ledger = Ledger()
    ledger.note(event(1, "reserved", "old", owner="alice"))
    ledger.note(event(2, "released", "old"))
    ledger.note(event(KEPT_S / HOUR_S + 10, "reserved", owner="alice"))
    ledger.note(event(KEPT_S / HOUR_S + 11, "released"))
    assert used(ledger, 0, 10**5)["alice"].reservations == 1
    for line in ({}, {"time": "yesterday", "event": "reserved"}, event(1, "reserved"), event(1, "held", busy_s="x")):
        ledger.note(line)
    assert used(ledger, 0, 10**5)["alice"].reservations == 1
