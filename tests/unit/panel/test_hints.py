"""What to type becomes what to click, in the very messages that the client has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.allocator.state.lease import released
from monarch_nb.client.connections.connection import ALLOCATOR_DOWN, POOL_DOWN
from monarch_nb.client.pools.choosing import Shape, choose_nodes
from monarch_nb.client.pools.held import Asked, HeldReservation, check_same, not_found
from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.errors import CapacityError, ReservationConflict
from monarch_nb.panel.refusal import clickable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.known import why_no_local_pool

FREE, TAKEN = (
    pb.DescribeReply(address="unix:/a", node_id="a", procs=4, procs_free=4),
    pb.DescribeReply(address="unix:/b", node_id="b", procs=4),
)


def too_much(shape: Shape) -> Callable[[], str]:
    def message() -> str:
        with pytest.raises(CapacityError) as caught:
            choose_nodes(shape, [FREE, TAKEN])
        return str(caught.value)

    return message


def conflict() -> str:
    node: Any = object()
    held = HeldReservation("id", {0: (node, pb.ReservationStatus(name="dev", nodes=1, procs=4))})
    with pytest.raises(ReservationConflict) as caught:
        check_same(held, Asked(Shape(1, 2, 0)))
    return str(caught.value)


def why_no_local_pool_on_a_mac() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        return why_no_local_pool()


def test_hints_name_buttons() -> None:
    for message, says in (
        (too_much(Shape(2, 4, 0)), "Release… on its card"),
        (too_much(Shape(3, 4, 0)), "Add nodes… (at Nodes) makes a local pool 4 nodes"),
        (too_much(Shape(1, 8, 0)), "release all reservations (Release… on its card)"),
        (too_much(Shape(1, 1, 1)), "choose CPU ranks as Kind"),
        (lambda: str(released(pb.Ended(name="dev", by="in eval.ipynb"))), ": Reserve… makes a new one"),
        (lambda: str(released(pb.Ended(name="dev", why="nobody used it"))), "nobody used it: Reserve… makes a new one"),
        (lambda: str(not_found("dev", [])), "you hold none: Reserve… makes one"),
        (why_no_local_pool_on_a_mac, "have ssh start nodes (Reserve…)"),
        (conflict, ": choose another name, or release it first (its ranks"),
        (lambda: POOL_DOWN, "its ranks are gone: Reserve… makes a new one"),
        (lambda: f"node1 {ALLOCATOR_DOWN}", "Start again… (at Nodes) starts its allocator again"),
        (lambda: str(InterruptReport(unreachable={1: "node1"})), "and goes on: node1 does not answer"),
        (lambda: str(InterruptReport(stuck={1: "a.py:1", 2: "b.py:1"})), "in 2 places: Stacks… shows where"),
        (lambda: str(InterruptReport(stuck={1: "a.py:1"}, kills=frozenset({1}))), "Restart… kills it and starts anew"),
    ):
        text = clickable(message())
        assert says in text
        assert "%mesh" not in text
        assert "monarch-nb" not in text
        other = "rank 3: killed by signal 9 (SIGKILL)"
        assert clickable(other) == other
