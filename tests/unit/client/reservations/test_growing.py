"""How many nodes are asked for, which go, and what is started on those that come."""

from __future__ import annotations

import pytest

from monarch_nb.client.reservations.growing import (
    Resized,
    check_is_more,
    check_without_ranks,
    places_to_leave,
    total_of,
    wanted_mesh,
    words,
)
from monarch_nb.errors import UsageError
from unit.client.reservations.held import held

NAMES = {0: "host1", 1: "host2", 2: "3"}


def test_nodes_are_all_or_as_seen_from_those_that_there_are() -> None:
    totals: dict[int | str, int] = {4: 4, "4": 4, " 1 ": 1, "+2": 5, "-2": 1, "+0": 3}
    for asked, total in totals.items():
        assert total_of(asked, 3) == total
    refusals: dict[int | str, str] = {
        "four": "--nodes four: give the number",
        "+": "give the number",
        0: "at least one node",
    }
    for asked, said in refusals.items():
        with pytest.raises(UsageError, match=said):
            total_of(asked, 3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (2, "--nodes 2: dev has 3 nodes already, and grow is for more.*%mesh shrink dev --nodes 2 leaves 2"),
        ("-1", r"--nodes -1: dev has 3 .* --nodes \+1; %mesh shrink dev --nodes 2 leaves 2"),
        (-1, "%mesh shrink dev --nodes 2 leaves 2"),
        ("-3", "%mesh release gives all back"),
    ],
)
def test_who_asks_for_fewer_is_told_how(asked: int | str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_is_more("dev", 3, asked)
    for more in (3, "+0", "-0", 4):
        check_is_more("dev", 3, more)


def test_one_node_is_no_list_of_letters() -> None:
    assert words("node9") == ["node9"]
    assert words(2) == [2]
    assert words(["a", 1], "b") == ["a", 1, "b"]
    assert words(()) == []


class TestPlacesToLeave:
    @pytest.mark.parametrize(
        ("absent", "nodes", "named", "leave"),
        [
            ([], 2, [], [2]),
            ([], "-2", [], [1, 2]),
            ([0], 2, [], [0]),
            ([0], 1, [], [0, 2]),
            ([], 3, [], []),
            ([1], None, ["host1", 2], [0, 2]),
            ([], None, ["3"], [2]),
            ([], None, ["host2", "1"], [1]),
        ],
    )
    def test_those_that_are_named_else_those_that_do_not_answer_and_the_last(
        self, absent: list[int], nodes: int | str | None, named: list[str | int], leave: list[int]
    ) -> None:
        assert places_to_leave(NAMES, absent, nodes, named) == leave

    @pytest.mark.parametrize(
        ("nodes", "named", "said"),
        [
            (None, [], "give the number of nodes to keep"),
            (
                2,
                ["host1"],
                "--nodes 2 is the number of nodes to keep, --node host1 a node to give back: use one of them",
            ),
            ("-3", [], "--nodes -3, of 3 nodes, leaves none: a reservation has at least one"),
            (4, [], "there are 3 nodes: %mesh grow --nodes 4 is for more"),
            (0, [], "at least one node"),
            (None, ["host9", 7], "no node host9, 7 in this reservation: it has host1, host2, 3"),
            (None, [0, 1, 2], "no node would be left of host1, host2, 3"),
        ],
    )
    def test_what_makes_no_sense(self, nodes: int | None, named: list[str | int], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            places_to_leave(NAMES, [], nodes, named)


class TestWantedMesh:
    def test_nothing_is_to_be_done(self) -> None:
        assert wanted_mesh(held(2, {"main": [0, 1]}), 0, "") is None
        assert wanted_mesh(held(2, {"main": [0], "grown": [0, 1]}), 0, "") is None
        assert wanted_mesh(held(2, {"main": [0], "all": [0, 1]}), 0, "all") is None

    def test_the_nodes_are_there_and_a_mesh_over_them_is_not(self) -> None:
        """It was stopped, or its client died when the nodes had joined."""
        assert wanted_mesh(held(2, {"main": [0]}), 0, "") is not None
        assert wanted_mesh(held(2, {"main": [0, 1]}), 0, "all") is not None

    def test_it_is_over_all_nodes_beside_main(self) -> None:
        wanted = wanted_mesh(held(2, {"main": [0, 1]}), 1, "")
        assert wanted is not None
        assert (wanted.spec.name, wanted.hosts, wanted.extent) == ("grown", 3, {"hosts": 3, "procs": 2})
        assert (wanted.part(2).first_rank, wanted.part(2).world_size) == (4, 6)

    def test_a_name_that_is_taken(self) -> None:
        there = held(3, {"main": [0], "grown": [0, 1, 2]})
        taken = r"dev has grown already, on 3 nodes: --mesh NAME makes another, %mesh stop grown ends it"
        with pytest.raises(UsageError, match=taken):
            wanted_mesh(there, 1, "")
        with pytest.raises(UsageError, match="choose another name"):
            wanted_mesh(there, 1, "main")


class TestShrinking:
    def test_nobody_uses_the_nodes(self) -> None:
        check_without_ranks(held(4, {"main": [0, 1], "one": [1]}), [2, 3])
        check_without_ranks(held(4, {"main": [0, 1], "one": [1]}, absent=[3]), [3])

    def test_main_stays_on_its_nodes(self) -> None:
        refused = (
            "host2, host3 would be given back, but main has ranks there: main stays on its nodes, "
            "%mesh reserve dev --nodes 1 --replace begins anew"
        )
        with pytest.raises(UsageError, match=f"^{refused}$"):
            check_without_ranks(held(3, {"main": [0, 1, 2]}), [1, 2])

    def test_one_beside_it_ends_first(self) -> None:
        there = held(4, {"main": [0, 1], "grown": [0, 1, 2, 3], "one": [3]})
        with pytest.raises(UsageError, match=r"host3 .* grown has ranks there: %mesh stop grown ends them$"):
            check_without_ranks(there, [2])
        with pytest.raises(
            UsageError, match=r"but grown, one have ranks .*: %mesh stop grown and %mesh stop one end them$"
        ):
            check_without_ranks(there, [2, 3])

    def test_nodes_that_do_not_answer_may_have_ranks(self) -> None:
        """Nobody says which of them has the rest of a mesh that `spawn_procs` has made."""
        with pytest.raises(UsageError, match="host3 would be given back, but two has ranks there"):
            check_without_ranks(held(4, {"main": [0], "two": [1, 2]}, absent=[2, 3]), [2])


def test_what_came_of_it() -> None:
    assert str(Resized("dev", 2)) == "dev has 2 nodes already"
    assert str(Resized("dev", 1, left=("host2",))) == "dev has 1 node: host2 is given back"
    assert str(Resized("dev", 2, ("host2",), mesh="grown", ranks=4)).splitlines() == [
        "dev has 2 nodes: host2 is new",
        "grown has 4 ranks on all of them: %%mesh --mesh grown runs a cell there; main stays as it is",
    ]
