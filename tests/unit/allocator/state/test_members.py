"""Which nodes a reservation has, as one of them knows it."""

from __future__ import annotations

import pytest

from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import ReservationConflict, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import AddedTree, Peer, ReservationFiles


def peers(names: str) -> list[Peer]:
    return [Peer(node_id=name, address=f"{name}:7878") for name in names]


def change(names: str, revision: int, *, pass_on: bool = False) -> pb.ChangeMembersRequest:
    return pb.ChangeMembersRequest(reservation_id="r", revision=revision, nodes=peers(names), pass_on=pass_on)


def reserve(lease_id: str = "") -> pb.ReserveRequest:
    return pb.ReserveRequest(reservation_id="r", lease_id=lease_id, name="dev", owner="me", procs=1, time_s=100.0)


@pytest.fixture
def state() -> NodeState:
    """Of a node of a reservation on "ab"."""
    made = NodeState(1)
    made.reserve(reserve())
    made.confirm("r", peers("ab"), 10.0)
    return made


def test_all_that_are_or_were_nodes_are_told(state: NodeState) -> None:
    told = state.change_members(change("ac", 1, pass_on=True), "a:7878", 20.0)
    assert told == peers("abc")
    lease = state.lease("r")
    assert (lease.nodes, lease.revision) == (peers("ac"), 1)
    assert [lease.has_node(f"{name}:7878") for name in "abc"] == [True, False, True]
    assert lease.limits.time_left_s(20.0) == 90.0, "it is held no longer for that"


def test_what_is_known_and_what_is_older_is_no_news(state: NodeState) -> None:
    state.change_members(change("ac", 1), "a:7878", 20.0)
    assert state.change_members(change("ac", 1, pass_on=True), "a:7878", 20.0) is None, "asked again after a break"
    state.change_members(change("dc", 2), "a:7878", 20.0)
    assert state.change_members(change("ac", 1), "a:7878", 20.0) is None
    assert state.lease("r").nodes == peers("dc")


@pytest.mark.parametrize("names", [["ac", "db"], ["db", "ac"]])
def test_of_two_lists_of_one_revision_all_keep_the_same(state: NodeState, names: list[str]) -> None:
    for nodes in names:
        state.change_members(change(nodes, 1), "a:7878", 20.0)
    assert state.lease("r").nodes == peers("db")


@pytest.mark.parametrize(("names", "revision"), [("ad", 1), ("ad", 3)])
def test_of_two_clients_one_is_refused(state: NodeState, names: str, revision: int) -> None:
    state.change_members(change("ac", 1, pass_on=True), "a:7878", 20.0)
    with pytest.raises(ReservationConflict, match="another client has just changed the nodes of 'dev' just now"):
        state.change_members(change(names, revision, pass_on=True), "a:7878", 20.0)
    assert state.lease("r").nodes == peers("ac")


def test_a_node_that_comes_learns_what_the_others_know() -> None:
    state = NodeState(1)
    with pytest.raises(ReservationNotFound):  # it was told to give its part back
        state.change_members(change("ac", 1), "a:7878", 20.0)
    state.reserve(reserve("one"))
    request = change("ac", 1)
    request.held_s = 30.0
    request.files.CopyFrom(ReservationFiles(added=[AddedTree(name="lib", source="h:/lib")], revision=4))
    request.shares["bob"] = pb.RIGHT_READ
    state.change_members(request, "c:7878", 1000.0)
    lease = state.lease("r")
    assert (lease.confirmed, lease.limits.time_left_s(1000.0)) == (True, 70.0)
    assert (lease.files.revision, lease.shares) == (4, {"bob": pb.RIGHT_READ})


@pytest.mark.parametrize(("names", "number"), [("abc", 0), ("ba", 1), ("a", 0)])
def test_the_number_of_nodes_may_be_another_one(state: NodeState, names: str, number: int) -> None:
    mesh = state.add_mesh(pb.SpawnRequest(reservation_id="r", mesh_id="m", name="main", ranks=1, world_size=2))
    state.change_members(change(names, 1), "a:7878", 20.0)
    held = state.lease("r").request
    assert (held.nodes, held.node_rank) == (len(names), number)
    assert mesh.spec.world_size == 2, "meshes stay as they are"


def test_another_lease_of_the_same_reservation_waits_for_the_end_of_the_first(state: NodeState) -> None:
    with pytest.raises(ReservationConflict, match="has a part of 'dev' already"):
        state.reserve(reserve("one"))
    state.release("r")
    state.release("r", "one")  # it overtakes its lease, and counts for no other
    with pytest.raises(ReservationNotFound, match="given back before"):
        state.reserve(reserve("one"))
    assert state.reserve(reserve("two")).request.lease_id == "two"
