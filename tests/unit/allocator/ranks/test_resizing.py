"""A node starts its ranks anew, as those of a world of another size."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from monarch_nb.allocator.ranks.resizing import Resizing
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.state.runs import RankSlot
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import NodePaths
from monarch_nb.errors import ReservationNotFound, SpawnError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2


class Node:
    """Stands in for what starts and ends ranks; writes down what it was told."""

    def __init__(self, directory: Path) -> None:
        self.told: list[Any] = []
        self.error: Exception | None = None
        self.state = NodeState(4)
        self.records = Records(NodePaths(directory), self.state, lambda *_: None)
        self.resizing = Resizing(self.state, self.records, *[cast(Any, self)] * 4)

    def has(self, ranks: Iterable[int], *, number: int, next_number: int | None) -> None:
        """Let it have ranks of a mesh of 3 nodes with 2 ranks each."""
        if not self.state.leases:
            self.state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="me", procs=2))
        spec = pb.SpawnRequest(reservation_id="r", mesh_id="m", name="main", ranks=2, world_size=6, node_rank=number)
        spec.first_rank = 2 * number
        record = state_pb2.MeshRecord(spec=spec, next_node_rank=next_number, store_moves=3, store_node="host1")
        record.ends = "me let main start anew"
        mesh = self.state.add_mesh(spec)
        mesh.ranks, mesh.last_number = {rank: RankSlot() for rank in ranks}, 7
        self.records.save_mesh(record)

    async def restart(self, mesh_id: str, ranks: Iterable[int], why: str) -> None:
        self.told.append(("restart", mesh_id, sorted(ranks), why))
        if self.error:
            raise self.error

    def end_all(self, mesh_id: str, why: str) -> None:
        self.told.append(("end runs", why))

    async def end_meshes(self, mesh_ids: list[str]) -> None:
        del self.state.meshes[mesh_ids[0]]
        self.told.append(("between", [spec.node_rank for spec in self.resizing.between("r")]))
        self.records.delete_mesh(mesh_ids[0])

    def check_held(self, reservation_id: str) -> None:
        if isinstance(self.error, ReservationNotFound):
            raise self.error

    async def spawn(self, spec: pb.SpawnRequest) -> None:
        record = self.records.meshes["m"]
        assert record.HasField("next_node_rank"), "who is killed now leaves it to the next one"
        self.told.append(("spawn", spec.node_rank, spec.first_rank, spec.last_number, record.store_moves))
        if self.error:
            raise self.error


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def is_to_change(node: Node) -> bool:
    record = node.records.meshes.get("m")
    return record is not None and record.HasField("next_node_rank")


@pytest.mark.parametrize(("next_number", "is_next_allocator"), [(1, False), (1, True), (None, False)])
async def test_ranks_that_keep_their_numbers_are_restarted_once(
    node: Node, next_number: int | None, is_next_allocator: bool
) -> None:
    node.has([2, 3], number=1, next_number=next_number)
    if is_next_allocator:
        node.resizing.resume()
    await node.resizing.settle()
    await node.resizing.settle()
    assert node.told == [("restart", "m", [2, 3], "me let main start anew")] * (next_number or 0)
    node.resizing.close()


@pytest.mark.parametrize("ranks", [[4, 5], []], ids=["other numbers", "the last allocator was killed before it forked"])
async def test_others_are_begun_with_the_numbers_that_they_are_to_have(node: Node, ranks: list[int]) -> None:
    node.has(ranks, number=2 if ranks else 1, next_number=1)
    await node.resizing.settle()
    ended, *rest = node.told
    assert ended == ("end runs", "me let main start anew")
    assert rest == [("between", [1]), ("spawn", 1, 2, 7, 3)]
    assert not is_to_change(node)


async def test_a_node_that_had_none_begins_with_them(node: Node) -> None:
    node.has([], number=1, next_number=1)
    node.records.meshes["m"].spec.last_number = 9
    del node.state.meshes["m"]
    await node.resizing.settle()
    assert node.told == [("spawn", 1, 2, 9, 3)]
    assert not is_to_change(node)


@pytest.mark.parametrize("number", [1, 2])
async def test_what_can_not_be_started_is_not_tried_for_ever(node: Node, number: int) -> None:
    node.has([2 * number, 2 * number + 1], number=number, next_number=1)
    node.error = SpawnError("no memory")
    await node.resizing.settle()
    assert not is_to_change(node)


async def test_what_is_released_meanwhile_is_not_started(node: Node) -> None:
    node.has([4, 5], number=2, next_number=1)
    node.error = ReservationNotFound("released")
    await node.resizing.settle()
    assert [told[0] for told in node.told] == ["end runs", "between"]
    assert not node.records.meshes
