"""Hosts that are called alike."""

from __future__ import annotations

from monarch_nb.client.pools.answering import warning


def test_nodes_of_one_name_are_named_with_their_addresses() -> None:
    nodes = [("gpu1", "10.0.0.1:7878"), ("gpu2", "10.0.0.3:7878"), ("gpu1", "10.0.0.2:7878")]
    assert warning(nodes).startswith("2 nodes are called gpu1 (10.0.0.1:7878, 10.0.0.2:7878): start their allocators ")
    assert warning([nodes[0], *nodes[:2]]) == warning([]) == "", "one that is listed twice is one"
