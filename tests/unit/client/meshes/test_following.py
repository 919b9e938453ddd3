"""How a mesh hears of its runs: from each of its nodes, or from the first one for all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import tree
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.shape import Extent


class FakeTree:
    def __init__(self, mesh_id: str, connections: dict[int, Any], *_: object) -> None:
        self.nodes = list(connections)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fake_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "TreeConnection", FakeTree)


def listening(nodes: int) -> MeshCore:
    connections: dict[int, Any] = {
        node: SimpleNamespace(mesh_deaths={}, ensure_session=lambda: None) for node in range(nodes)
    }
    core = MeshCore("mesh", connections, Extent({"hosts": nodes, "procs": 8}))
    core._listen()
    return core


def test_sixteen_nodes_are_followed_directly() -> None:
    core = listening(16)
    assert core.tree is None, "a tree of 16 is slower, in latency and in processor time of all nodes"
    assert all("mesh" in connection.mesh_deaths for connection in core.connections.values())


def test_more_nodes_are_followed_through_the_first() -> None:
    core = listening(17)
    assert isinstance(core.tree, FakeTree)
    assert core.tree.nodes == list(range(17))
    assert not any(connection.mesh_deaths for connection in core.connections.values())
