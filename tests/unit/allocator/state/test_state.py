"""Leases and meshes of one node's state: what fits, and who holds what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from monarch_nb.allocator.processes.specs import gpus_of
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.errors import CapacityError, ReservationConflict, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import AddedTree, Peer, ReservationFiles


def request(reservation_id: str = "r", name: str = "dev", owner: str = "me", **slots: Any) -> pb.ReserveRequest:
    return pb.ReserveRequest(reservation_id=reservation_id, name=name, owner=owner, **slots)


def spec(mesh_id: str = "m", reservation_id: str = "r", ranks: int = 2, first_rank: int = 0) -> pb.SpawnRequest:
    return pb.SpawnRequest(mesh_id=mesh_id, reservation_id=reservation_id, ranks=ranks, first_rank=first_rank)


class TestReserve:
    def test_slots_are_taken_and_given_back(self) -> None:
        state = NodeState(4, gpus=[4, 5, 6])
        first = state.reserve(request("a", "a", procs=3))
        assert state.reserve(request("a", "a", procs=3)) is first, "the same again"
        assert state.reserve(request("b", "b", gpus=1)).gpu_indices == [4]
        assert state.reserve(request("c", "c", gpus=2)).gpu_indices == [5, 6]
        assert (state.procs_free, state.gpus_free) == (1, [])
        for name in "ab":
            state.release(name)
        assert (state.procs_free, state.reserve(request("d", "d", gpus=1)).gpu_indices) == (4, [4])

    def test_a_gpu_that_is_lost_is_not_leased_until_it_can_be_read_again(self) -> None:
        state = NodeState(4, gpus=range(4))
        state.gpu_troubles = {1: "GPU 1 has fallen off the bus"}
        with pytest.raises(CapacityError, match="4 gpus per node asked for, 3 of 4 free; GPU 1 has fallen off the bus"):
            state.reserve(request("a", "a", gpus=4))
        with pytest.raises(CapacityError) as raised:
            state.reserve(request("a", "a", procs=5))
        assert "GPU" not in str(raised.value)
        assert state.reserve(request("a", "a", gpus=3)).gpu_indices == [0, 2, 3]
        state.gpu_troubles = {}
        assert state.reserve(request("b", "b", gpus=1)).gpu_indices == [1]

    def test_a_gpu_that_others_hold_is_not_leased(self) -> None:
        state = NodeState(0, gpus=range(3))
        state.gpus_held = {1: pb.GpuHolder(owner="ann", reservation="train")}
        with pytest.raises(CapacityError, match=r"2 of 3 free; GPU 1 is held by ann \(train\)$"):
            state.reserve(request(gpus=3, force_busy=True))
        assert state.reserve(request(gpus=2)).gpu_indices == [0, 2]

    def test_a_gpu_that_others_use_is_leased_to_who_wants_it_so(self) -> None:
        state = NodeState(0, gpus=range(3))
        state.gpus_used = {0: [pb.GpuProcess(pid=4711, name="python", user="bob", memory_bytes=2_500_000_000)]}
        busy = "GPU 0 is busy: pid 4711 (python, bob, 2.5 GB)"
        with pytest.raises(CapacityError, match=rf"2 of 3 free; {re.escape(busy)}$"):
            state.reserve(request(gpus=3))
        assert state.reserve(request("a", "a", gpus=1, force_busy=True)).gpu_indices == [1], "others are free"
        assert state.reserve(request("b", "b", gpus=2, force_busy=True)).gpu_indices == [0, 2]
        assert not state.describe_gpu(pb.Gpu(index=0)).used_by, "it is leased, and its ranks are among those who use it"

    @pytest.mark.parametrize(
        ("asked", "error", "message"),
        [
            ({"procs": 3}, CapacityError, r"^3 procs per node asked for, 2 of 4 free; dev \(me\) holds 2$"),
            ({"gpus": 2}, CapacityError, r"^2 gpus per node asked for, 1 of 2 free; train \(you\) holds 1$"),
            ({}, UsageError, "not both"),
            ({"procs": 1, "gpus": 1}, UsageError, "not both"),
        ],
    )
    def test_too_much_names_who_holds_it(self, asked: dict[str, int], error: type[Exception], message: str) -> None:
        state = NodeState(4, gpus=[0, 1])
        state.reserve(request("a", "dev", "me", procs=2))
        state.reserve(request("b", "train", "you", gpus=1))
        with pytest.raises(error, match=message):
            state.reserve(request("c", "more", **asked))
        assert (set(state.leases), state.procs_free, state.meshes) == ({"a", "b"}, 2, {})
        with pytest.raises(CapacityError, match="this node has no GPU"):
            NodeState(4).reserve(request(gpus=1))

    def test_a_name_is_one_reservation_per_owner(self) -> None:
        state = NodeState(4)
        assert not state.reserve(request("a", procs=1)).confirmed
        with pytest.raises(ReservationConflict, match="'dev' is already held"):
            state.reserve(request("b", procs=1))
        state.reserve(request("c", owner="another", procs=1))
        assert set(state.leases) == {"a", "c"}
        state.confirm("a")
        assert state.lease("a").confirmed
        with pytest.raises(ReservationNotFound):
            state.confirm("b")


class TestMeshes:
    def test_ranks_are_numbered_from_the_nodes_first(self) -> None:
        state, main = NodeState(4), spec(ranks=3)
        with pytest.raises(ReservationNotFound, match="reserve again"):
            state.add_mesh(main)
        state.reserve(request(procs=2))
        main.name = "main"
        with pytest.raises(CapacityError, match="3 ranks do not fit in 2 slots of dev"):
            state.add_mesh(main)
        assert not state.meshes
        mesh = state.add_mesh(spec(ranks=2, first_rank=4))
        assert {rank: slot.ready for rank, slot in mesh.ranks.items()} == {4: False, 5: False}

    def test_each_rank_has_one_of_the_leased_gpus_which_go_round_beside_main(self) -> None:
        state = NodeState(0, gpus=[0, 1, 4, 5])
        state.reserve(request("x", "x", gpus=2))
        state.reserve(request(gpus=2))
        assert [slot.gpu_indices for slot in state.add_mesh(spec()).ranks.values()] == [[4], [5]]
        beside = state.add_mesh(spec("b", ranks=3))
        assert [slot.gpu_indices for slot in beside.ranks.values()] == [[4], [5], [4]]
        assert gpus_of(beside, beside.ranks) == [4, 5]


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
