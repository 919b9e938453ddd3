"""What nodes said last is known to the next process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.answering import held_on, keep
from monarch_nb.config import CONFIG_VARIABLE, TrustPaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.hosts import HostsProvisioner
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import Hosts, change_hosts, make_paths

A, B = "10.0.0.1:7878", "10.0.0.2:7878"


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrustPaths:
    """Of a pool with two nodes."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    make_pool("lab", "alice")
    change_hosts(make_paths("lab"), lambda _: Hosts(nodes=(A, B)))
    return make_paths("lab")


def told(address: str, name: str, **owners: str) -> Any:
    """What a node says, which holds reservations of these names for their owners."""
    me = SimpleNamespace(name="alice")
    node = SimpleNamespace(address=address, name=name, node_address=f"{name}:7878", identity=me)
    held = [pb.ReservationStatus(name=name, owner=owner) for name, owner in owners.items()]
    return node, pb.StatusReply(reservations=held)


def names() -> list[str]:
    return [node.node_id for node in HostsProvisioner().nodes(pool="lab")]


def test_nodes_are_called_as_they_called_themselves() -> None:
    assert names() == ["10.0.0.1", "10.0.0.2"]
    keep("lab", [told(A, "n1"), told(B, "n2")], [])
    assert names() == ["n1", "n2"]
    assert [node.node_address for node in HostsProvisioner().nodes(pool="lab")] == ["n1:7878", "n2:7878"]


def test_two_of_one_name_are_called_by_their_addresses() -> None:
    keep("lab", [told(A, "n1")], [B])
    keep("lab", [told(B, "n1")], [A])
    assert names() == ["10.0.0.1", "10.0.0.2"]


def test_the_names_of_ones_own_reservations_are_known_of_nodes_that_were_heard() -> None:
    keep("lab", [told(A, "n1", dev="alice", his="bob")], [B])
    assert held_on("lab", [A]) == ["dev"]
    assert held_on("lab", [A, B]) is None, "what the other one holds nobody knows"
    keep("lab", [told(B, "n2", eval="alice", dev="alice")], [A])
    assert held_on("lab", [A, B]) == ["dev", "eval"]


def test_nothing_is_kept_of_the_pool_of_a_job_and_of_a_local_one(paths: TrustPaths) -> None:
    keep("local", [told(A, "n1")], [])
    paths.jobs.mkdir()
    keep("lab", [told(A, "n1")], [])
    assert not paths.last_heard.exists()
    assert [path.name for path in paths.directory.parent.iterdir()] == ["lab"]
