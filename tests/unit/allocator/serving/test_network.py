"""Where an allocator of a network listens."""

from __future__ import annotations

import pytest

from monarch_nb.allocator.serving import network
from monarch_nb.allocator.serving.network import address_toward
from monarch_nb.errors import UsageError


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (["login"], "10.0.0.7"),
        (["nowhere", "login"], "10.0.0.7"),
        (["here", "login"], "10.0.0.7"),
        (["here", "nowhere"], "127.0.0.1"),
        (["six"], "[fd00::7]"),
    ],
)
def test_it_is_where_the_first_other_machine_is_reached_from(
    hosts: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"login": "10.0.0.7", "here": "127.0.0.1", "six": "fd00::7"}
    monkeypatch.setattr(network, "_own_address", lambda host: ways.get(host, ""))
    assert address_toward(hosts) == address


def test_the_way_to_this_machine_is_its_own_and_a_host_that_nobody_knows_is_named() -> None:
    assert address_toward(["127.0.0.1"]) == "127.0.0.1"
    with pytest.raises(UsageError, match=r"--toward no-such-host\.invalid: this machine has no route there"):
        address_toward(["no-such-host.invalid"])
