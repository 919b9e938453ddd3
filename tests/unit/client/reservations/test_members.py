"""What other threads see of a reservation's nodes while these change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from monarch_nb.client.pools.infos import RIGHTS
from monarch_nb.client.reservations.members import Members

NODES = [MagicMock(), MagicMock()]


def held(nodes: int) -> Any:
    facts = SimpleNamespace(reservation_id="r", name="dev", nodes=nodes, right=next(iter(RIGHTS)))
    return SimpleNamespace(facts=facts, revision=nodes, connections=dict(enumerate(NODES[:nodes])))


async def test_more_nodes_are_seen_when_the_meshes_are_over_them() -> None:
    """Whoever sees them may run a cell at once."""
    seen: list[tuple[int, int]] = []
    meshes = MagicMock(move_to=lambda _: seen.append((members.count, len(members.connections))))
    members = Members(MagicMock(), held(1), meshes, MagicMock(connections={}))
    await members._move_to(held(2))
    await members._move_to(held(2))
    assert seen == [(1, 1)], "once, and before"
    assert (members.count, len(members.connections)) == (2, 2)
