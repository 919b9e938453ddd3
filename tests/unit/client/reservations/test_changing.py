"""What is said of nodes that could join a reservation, and do not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.pool import Pool
from monarch_nb.client.reservations.changing import free_nodes
from monarch_nb.errors import CapacityError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


@pytest.mark.parametrize("others", [0, 1])
async def test_why_they_do_not_answer_but_for_the_one_whose_place_is_empty(others: int) -> None:
    pool = Pool("lab")
    pool._silent = {name: ("127.0.0.1:1", NodeUnreachable(f"{name} is away", name)) for name in ("host1", "host2")}
    facts = SimpleNamespace(procs=4, gpus=0, nodes=2)
    held: Any = SimpleNamespace(facts=facts, absent={1: SimpleNamespace(name="host1")})
    full: list[Any] = [(None, pb.StatusReply(node=pb.DescribeReply(node_id="host3", procs=4)))] * others
    with pytest.raises(CapacityError, match="no free node for the place of host1") as raised:
        await free_nodes(pool, held, 1, full, "the place of host1", "; add one")
    said = str(raised.value)
    assert ("host2: does not answer (connection refused)" if others else "(host2: connection refused); add one") in said
    assert said.count("host1") == 1
