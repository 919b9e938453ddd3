"""A reservation as its nodes tell of it: which meshes are on which of them, and whether it can be used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.held import HeldReservation, current_owner, not_whole
from monarch_nb.client.pools.infos import reservation_info
from monarch_nb.client.pools.pool import Pool
from monarch_nb.errors import NodeUnreachable, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb


def held(*nodes: dict[str, tuple[int, int]] | None) -> HeldReservation:
    """What there is: of each node (None: it does not answer) the meshes, each with the part it has, of how many."""
    there: dict[int, Any] = {}
    for place, parts in enumerate(nodes):
        if parts is not None:
            status = pb.ReservationStatus(name="dev", nodes=len(nodes), procs=2, confirmed=True)
            for name, (number, hosts) in parts.items():
                spec = pb.SpawnRequest(mesh_id=name, name=name, ranks=2, node_rank=number, world_size=2 * hosts)
                status.meshes.add(mesh_id=name, name=name, spec=spec)
            there[place] = SimpleNamespace(name=f"host{place}"), status
    away: dict[int, Any] = {
        place: SimpleNamespace(name=f"host{place}") for place, parts in enumerate(nodes) if parts is None
    }
    return HeldReservation("r", there, away)


def places(reservation: HeldReservation) -> dict[str, dict[int, int]]:
    return {name: dict(mesh.places) for name, mesh in reservation.meshes.items()}


def test_the_main_mesh_is_on_the_first_nodes_also_when_they_do_not_answer() -> None:
    grown = held({"main": (0, 2), "grown": (0, 4)}, None, None, {"grown": (3, 4)})
    every = {0: 0, 1: 1, 2: 2, 3: 3}
    assert places(grown) == {"main": {0: 0, 1: 1}, "grown": every}
    assert grown.main is not None
    assert (grown.main.hosts, grown.main.extent) == (2, {"hosts": 2, "procs": 2})
    assert grown.usable


def test_which_part_a_lost_node_had_is_said_only_where_it_is_known() -> None:
    assert places(held({"main": (0, 3)}, None, {"main": (2, 3), "two": (1, 2)}))["two"] == {0: 1, 1: 2}
    assert places(held({"main": (0, 4)}, None, None, {"main": (3, 4), "two": (1, 2)}))["two"] == {1: 3}
    without_ranks = held({"main": (0, 1)}, {})
    assert (without_ranks.usable, without_ranks.complete) == (True, True), "it is a whole one"


def test_one_whose_main_mesh_nobody_tells_of_can_not_be_used() -> None:
    lost = held(None, {"grown": (1, 2)})
    assert lost.main is None
    assert not lost.usable
    anew = "%mesh reserve dev --nodes 2 --procs 2 --replace gives the other nodes back and begins anew"
    assert f"main had ranks only there: {anew}" in str(not_whole(lost))
    assert "%mesh attach dev uses the others" in str(not_whole(held({"main": (0, 2)}, None)))


def test_who_knows_of_the_newest_change_says_what_a_mesh_is() -> None:
    reservation = held({"main": (0, 1)}, {"main": (1, 2)})
    reservation.nodes[1][1].revision = 1
    assert reservation.main is not None
    assert reservation.main.hosts == 2


def test_nodes_without_ranks_of_main_are_named() -> None:
    info = reservation_info(mine({"main": (0, 1), "grown": (0, 2)}, {"grown": (1, 2)}, {}))
    assert info.mesh_names == "main, grown"
    assert [(mesh.name, mesh.size, mesh.nodes) for mesh in info.meshes] == [
        ("main", 2, ("host0",)),
        ("grown", 4, ("host0", "host1")),
    ]
    assert info.nodes_without_main == ("host1: held, no ranks of main", "host2: held, no ranks")
    alone = reservation_info(mine({"main": (0, 1)}))
    assert (alone.mesh_names, alone.nodes_without_main) == ("", ())


def mine(*nodes: dict[str, tuple[int, int]]) -> HeldReservation:
    made = held(*nodes)
    for connection, status in made.nodes.values():
        connection.identity = None
        status.owner = current_owner()
    return made


class FakeNode:
    def __init__(self, name: str) -> None:
        self.name = self.node_address = name
        self.identity = None


class FakePool(Pool):
    """Nodes n1 and n2 hold it; the test says which of three answer."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.nodes: Any = [FakeNode(name) for name in ("n1", "n2", "n3")]
        self.away_nodes: list[str] = []
        self.is_released = False

    async def ask(self, **_: object) -> list[tuple[Any, pb.StatusReply]]:
        held = pb.ReservationStatus(reservation_id="r", name="dev", nodes=2, owner="me")
        self._silent = {name: ("", NodeUnreachable("")) for name in self.away_nodes}
        told = []
        for place, node in enumerate(self.nodes):
            here = [held] if place < 2 and not self.is_released else []
            held.node_rank = place
            told.append((node, pb.StatusReply(reservations=here)))
        return [one for one in told if one[0].name not in self.away_nodes]


async def test_one_of_which_no_node_answers_is_not_taken_for_a_released_one() -> None:
    pool = FakePool()
    assert len((await pool.held("r", "dev")).nodes) == 2
    pool.away_nodes = ["n1", "n2"]
    with pytest.raises(NodeUnreachable, match=r"^'dev' is held, but n1, n2 do not answer: .* %mesh release dev needs"):
        await pool.held("r", "dev")
    pool.away_nodes, pool.is_released = ["n1"], True
    with pytest.raises(ReservationNotFound):  # n2 would tell of it
        await pool.held("r", "dev")
    pool.away_nodes = ["n1", "n2"]
    with pytest.raises(ReservationNotFound):  # n2 did not tell of it any more
        await pool.held("r", "dev")
