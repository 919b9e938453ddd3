"""Holding nodes for longer, on all or on none."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.reservations.nodes import extending
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


class Node:
    name = "node"

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.limits_s = fails, list[float]()

    async def unary(self, method: str, request: pb.ExtendRequest) -> pb.ExtendReply:
        assert method == "Extend"
        if self.fails:
            raise NodeUnreachable("host2 does not answer", "host2")
        self.limits_s.append(request.time_s)
        return pb.ExtendReply()


async def test_a_limit_that_a_node_does_not_take_is_taken_back() -> None:
    nodes: list[Any] = [Node(), Node(fails=True)]

    class Pool:
        async def held(self, *_: object) -> HeldReservation:
            status = pb.ReservationStatus(name="dev", time_s=60.0)
            return HeldReservation("r", {number: (node, status) for number, node in enumerate(nodes)})

    pool: Any = Pool()
    with pytest.raises(NodeUnreachable):
        await extending._set_limit(pool, "r", "dev", 90.0)
    assert nodes[0].limits_s == [90.0, 60.0]
    nodes[1].fails = False
    await extending._set_limit(pool, "r", "dev", 90.0)
    assert nodes[0].limits_s[-1] == nodes[1].limits_s[-1] == 90.0
