"""Hosts that are called alike."""

from __future__ import annotations

from monarch_nb.client.pools.namesakes import namesakes, warning


def test_nodes_of_one_name_are_named_with_their_addresses() -> None:
    nodes = [("gpu1", "10.0.0.1:7878"), ("gpu2", "10.0.0.3:7878"), ("gpu1", "10.0.0.2:7878")]
    assert warning(nodes) == (
        "2 nodes are called gpu1 (10.0.0.1:7878, 10.0.0.2:7878): start their allocators with --node-id, each with a "
        "name of its own"
    )


def test_one_node_that_is_listed_twice_is_one() -> None:
    assert namesakes([("gpu1", "10.0.0.1:7878"), ("gpu1", "10.0.0.1:7878"), ("gpu2", "10.0.0.2:7878")]) == {}
    assert warning([]) == ""
