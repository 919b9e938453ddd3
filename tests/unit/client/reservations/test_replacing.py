"""Which nodes are replaced, and what is started in their places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.pool import Pool
from monarch_nb.client.reservations.replacing import Replaced, places_to_fill, specs_by_place
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import Peer
from unit.client.reservations.held import held

NAMES = {0: "host1", 1: "host2", 2: "3"}


def test_places_are_those_that_are_named_else_those_that_do_not_answer() -> None:
    for absent, asked, filled in (
        ([1], [], [1]),
        ([2, 1], [], [1, 2]),
        ([1], ["host1"], [0]),
        ([], [2, "0"], [0, 2]),
        ([], ["3"], [2]),
        ([1], ["host2", "1"], [1]),
    ):
        assert places_to_fill(NAMES, absent, asked) == filled


@pytest.mark.parametrize(
    ("absent", "asked", "said"),
    [
        ([1, 2], [0], "no node would be left"),
        ([], [0, 1, 2], "no node would be left"),
    ],
)
def test_places_that_make_no_sense(absent: list[int], asked: list[str | int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        places_to_fill(NAMES, absent, asked)


@pytest.mark.parametrize(
    ("meshes", "absent", "wanted", "specs"),
    [
        ({"main": [0, 1, 2], "all": [0, 1, 2]}, [1], [1], {1: [("main", 1, 2), ("all", 1, 2)]}),
        # A node that answers says itself what it has.
        ({"main": [0, 1, 2], "one": [1]}, [], [1], {1: [("main", 1, 2), ("one", 0, 0)]}),
        ({"main": [0, 1, 2], "two": [1, 2]}, [1], [1], {1: [("main", 1, 2), ("two", 0, 0)]}),
        # Nobody says which of two lost nodes had a part.
        ({"main": [0, 1, 2], "two": [1, 2]}, [0, 1], [0, 1], {0: [("main", 0, 0)], 1: [("main", 1, 2)]}),
    ],
)
def test_what_starts_is_the_part_of_each_mesh_that_the_lost_node_had(
    meshes: dict[str, list[int]], absent: list[int], wanted: list[int], specs: dict[int, list[tuple[str, int, int]]]
) -> None:
    made = specs_by_place(held(3, meshes, absent), wanted)
    told = {place: [(spec.name, spec.node_rank, spec.first_rank) for spec in parts] for place, parts in made.items()}
    assert told == specs


def test_what_is_said() -> None:
    assert str(Replaced(1, "host2", "host4", (2, 3))) == (
        "host4 has the place of host2: ranks 2-3 are new there, run the cells that define their variables"
    )
    assert "rank 1 is new there" in str(Replaced(1, "host2", "host4", (1,)))


class Node(SimpleNamespace):
    """A connection, as much of it as is looked at."""

    __hash__ = object.__hash__


class TestPutTogether:
    """What nodes say of a reservation, when some do not know the newest."""

    def told(self, name: str, node_rank: int, members: str, revision: int) -> tuple[Any, pb.StatusReply]:
        connection = Node(name=name, node_address=f"{name}:1", address=f"{name}:1", identity=None)
        status = pb.ReservationStatus(reservation_id="r", node_rank=node_rank, nodes=2, revision=revision)
        status.members.extend(Peer(node_id=member, address=f"{member}:1") for member in members)
        return connection, pb.StatusReply(reservations=[status])

    def names(self, *told: tuple[Any, pb.StatusReply]) -> dict[int, str]:
        [made] = Pool("lab").put_together(told)
        assert not made.absent
        return {place: connection.name for place, (connection, _) in sorted(made.nodes.items())}

    def test_a_node_that_was_replaced_and_does_not_know_it(self) -> None:
        others = [self.told("a", 0, "ac", 1), self.told("c", 1, "ac", 1)]
        assert self.names(self.told("b", 1, "ab", 0), *others) == {0: "a", 1: "c"}
        assert self.names(*others, self.told("b", 1, "ab", 0)) == {0: "a", 1: "c"}

    def test_nobody_but_a_node_that_was_replaced(self) -> None:
        pool = Pool("lab")
        silent = (Node(node_address=f"{name}:1", address="", is_known_as=lambda *_: None) for name in "ac")
        pool.connections.update((node.node_address, node) for node in silent)
        assert pool.put_together([self.told("b", 1, "ac", 1)]) == []

    def test_a_node_that_is_just_coming(self) -> None:
        others = [self.told("a", 0, "ab", 0), self.told("b", 1, "ab", 0)]
        assert self.names(self.told("c", 1, "", 0), *others) == {0: "a", 1: "b"}
        assert self.names(*others, self.told("c", 1, "", 0)) == {0: "a", 1: "b"}
