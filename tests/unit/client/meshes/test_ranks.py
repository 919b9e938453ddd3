"""The ranks of a mesh, while its nodes change or some are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import Extent


class Node:
    """Answers, and says which ranks were told to abort their groups."""

    identity = None

    def __init__(self, name: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.name, self.meanwhile, self.aborted = name, meanwhile, list[int]()

    async def check(self) -> None: ...

    async def unary(self, method: str, request: Any, timeout_s: float = 0) -> Any:
        if method == "Status":
            self.meanwhile()
            told = pb.ReservationStatus(meshes=[pb.MeshStatus(mesh_id="m", name=self.name)])
            return pb.StatusReply(reservations=[told])
        if method == "Control":
            self.aborted += request.ranks
            return pb.ControlRanksReply()
        return pb.RestartReply()


class Session:
    """All known nodes answer."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.there = nodes.keys()

    async def wait_up(self, nodes: set[int]) -> set[int]:
        return nodes - self.there


def mesh_of(nodes: dict[int, Node], nodes_in_all: int) -> MeshCore:
    connections: Any = nodes
    made: Any = MeshCore("m", connections, Extent({"hosts": nodes_in_all, "procs": 2}))
    made._session = Session(nodes)
    mesh: MeshCore = made
    return mesh


async def test_what_a_node_says_is_its_own_also_when_another_gets_its_place_meanwhile() -> None:
    replaced, other = Node("old"), Node("other")
    mesh = mesh_of({0: replaced, 1: other}, 2)
    connections: Any = mesh.connections
    replaced.meanwhile = lambda: connections.update({0: Node("new")})
    assert [(node.name, told.name) for node, told in await mesh.status()] == [("old", "old"), ("other", "other")]
    replaced.meanwhile = lambda: None
    other.meanwhile = lambda: connections.pop(1, None)
    assert [told.name for _, told in await mesh.status()] == ["new", "other"]


async def test_a_restart_tells_all_survivors_also_when_a_node_is_not_known() -> None:
    first, last = Node("n1"), Node("n2")
    await mesh_of({1: first, 2: last}, 3).restart([2])
    assert (first.aborted, last.aborted) == ([3], [4, 5])


async def test_all_groups_are_aborted_also_when_a_node_is_not_known() -> None:
    first, last = Node("n1"), Node("n2")
    await mesh_of({1: first, 2: last}, 3).abort_groups("why")
    assert (first.aborted, last.aborted) == ([2, 3], [4, 5])
