"""Which nodes a room may talk to, and in whose name."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from monarch_nb.allocator.gateway.rooms import Rooms
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import Peer

NODES = [Peer(node_id=name, address=f"{name}:7878") for name in ("host1", "host2")]
NEW = Peer(node_id="host3", address="host3:7878")


@pytest.fixture
def rooms() -> Rooms:
    """Alice's reservation is on two nodes, bob's is not confirmed yet, and carol's account is alice's, too."""
    state = NodeState(4, [])
    for owner in ("alice", "bob", "carol"):
        state.reserve(pb.ReserveRequest(reservation_id=owner, name="dev", owner=owner, procs=1, nodes=2))
    state.confirm("alice", NODES, 0.0)
    made = Rooms(Mock(), Path("/nowhere"), state, Mock(), Mock(), Mock())
    made._accounts.update(alice="a", bob="b", carol="a")
    return made


@pytest.mark.parametrize(
    ("account", "address", "owner", "may"),
    [
        ("a", "host2:7878", "alice", True),
        ("a", "host3:7878", "alice", False),
        ("a", "unix:/run/other", "alice", False),
        ("a", "", "alice", False),
        ("a", "host2:7878", "bob", False),
        ("a", "host2:7878", "carol", False),
        ("a", "host2:7878", "", False),
        ("b", "host2:7878", "alice", False),
        ("b", "host2:7878", "bob", False),
    ],
)
def test_members_of_an_own_reservation_in_its_owners_name(
    rooms: Rooms, account: str, address: str, owner: str, may: bool
) -> None:
    assert rooms._may_reach(account, address, owner) is may


def test_nodes_that_the_owner_names_before_all_is_confirmed(rooms: Rooms) -> None:
    rooms.name_nodes("bob", [NEW])
    rooms.name_nodes("unknown", [NEW])
    assert rooms._may_reach("b", NEW.address, "bob")
    assert not rooms._may_reach("a", NEW.address, "alice")


def test_a_node_that_has_no_place_any_more_is_not_reached(rooms: Rooms) -> None:
    request = pb.ChangeMembersRequest(reservation_id="alice", nodes=[NODES[0], NEW], revision=1, pass_on=True)
    rooms._state.change_members(request, NODES[0].address, 0.0)
    assert rooms._may_reach("a", NEW.address, "alice")
    assert not rooms._may_reach("a", NODES[1].address, "alice")
