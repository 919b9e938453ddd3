"""Pools of hosts: where their nodes are found."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import AccessDenied, PoolError, UsageError
from monarch_nb.provision import provisioner_of
from monarch_nb.provision.hosts import HostsProvisioner
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import USER
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import Hosts, change_hosts, paths_of
from monarch_nb.trust.published import Published, publish


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A pool; called, it says where the nodes are."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    make_pool("lab", "alice")
    return lambda **where: change_hosts(paths_of("lab"), lambda _: Hosts(**where)) and None


def addresses() -> list[str]:
    return [node.address for node in HostsProvisioner().nodes(pool="lab")]


def test_a_pool_that_was_made_or_joined_is_one_of_hosts() -> None:
    assert isinstance(provisioner_of("lab"), HostsProvisioner)
    assert isinstance(provisioner_of("local"), LocalProvisioner)
    assert isinstance(provisioner_of("other"), LocalProvisioner)


def test_nobody_starts_or_ends_other_peoples_machines(lab: Callable[..., None]) -> None:
    lab(nodes=("127.0.0.1:1",))
    with pytest.raises(UsageError, match="on each, run monarch-nb allocator --pool lab --listen HOST:7878"):
        HostsProvisioner().up(pool="lab")
    paths = paths_of("lab")
    Authority.load("lab", paths).issue("bob", USER).save(paths.identity)
    with pytest.raises(AccessDenied, match="only the person who made the pool lab can end its nodes; %mesh release"):
        HostsProvisioner().down(pool="lab")


def test_a_list_and_with_a_directory_one_pool(lab: Callable[..., None], tmp_path: Path) -> None:
    lab(nodes=("host1:7878", "host2:7878", "host2:7879"))
    nodes = HostsProvisioner().nodes(pool="lab")
    assert [node.node_id for node in nodes] == ["host1", "host2:7878", "host2:7879"], "each has a name of its own"
    assert all(node.alive and node.identity and node.identity.name == "alice" for node in nodes)
    for name in ("host1", "host3"):
        publish(tmp_path, Published(name, f"{name}:7878", "0.1.0", [], 4, heartbeat=0.0))
    lab(nodes=("host1:7878", "host2:7878"), directory=str(tmp_path))
    assert addresses() == ["host1:7878", "host2:7878", "host3:7878"]


def test_published_nodes_of_one_name_are_known_by_their_addresses(lab: Callable[..., None], tmp_path: Path) -> None:
    for address, beside in (("10.0.0.1:7878", False), ("10.0.0.2:7878", True)):
        publish(tmp_path, Published("gpu1", address, "0.1.0", [], 4, heartbeat=0.0), beside=beside)
    lab(directory=str(tmp_path))
    assert {node.node_id for node in HostsProvisioner().nodes(pool="lab")} == {"10.0.0.1", "10.0.0.2"}


def test_every_address_of_a_name_is_a_node(lab: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.2")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    lab(dns="nodes.lab.svc:7878")
    hosts = HostsProvisioner()
    for _ in range(3):
        found = [node.address for node in hosts.nodes(pool="lab")]
        assert found == ["10.0.0.1:7878", "10.0.0.2:7878", "[fd00::1]:7878"]
    assert asked == ["nodes.lab.svc"], "an answer is good for seconds"


def test_a_name_without_addresses_is_told(lab: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_answer)
    lab(dns="nowhere:7878")
    with pytest.raises(PoolError, match=r"the name nowhere has no address .*Name or service not known.*forgets it"):
        addresses()
    lab(nodes=("host1:7878",), dns="nowhere:7878")
    assert addresses() == ["host1:7878", "nowhere:7878"], "one that does not answer, beside those that do"
