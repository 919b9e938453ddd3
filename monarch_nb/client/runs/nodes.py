"""The nodes of a run: through which connections it is followed, and which of them answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from monarch_nb.client.connections.connection import Connection, close_all
from monarch_nb.client.connections.tree import FollowedThrough, TreeConnection
from monarch_nb.client.pools.ranks import MeshRanks


class RunNodes:
    """The nodes of the ranks that a run is on. Everything here runs on the background loop.

    Args:
        core: the ranks of the mesh.
        ranks: those of the run.
        own_connections: it is followed once more in this process, beside whoever follows it already.
    """

    def __init__(self, core: MeshRanks, ranks: Iterable[int], *, own_connections: bool) -> None:
        self._core, self._ranks = core, tuple(ranks)
        self._own: dict[int, FollowedThrough] | None = {} if own_connections else None
        self._away: set[int] = set()  # those that do not answer
        self.linked: set[str] = set()
        """Names of those that did not answer for a while."""

    def connection(self, node: int) -> FollowedThrough:
        """Return the connection that the run is followed through on a node."""
        if self._core.tree is not None:
            return self._tree(self._core.tree)
        shared = self._core.connections[node]
        if self._own is None:
            return shared
        if node not in self._own:
            self._own[node] = shared.again()
        return self._own[node]

    def shared(self) -> list[FollowedThrough]:
        """Return those through which everybody in this process follows runs on the nodes of this one."""
        if self._core.tree is not None:
            return [self._core.tree]
        connections = self._core.connections
        return [connections[node] for node in self._core.by_node(self._ranks) if node in connections]

    def parts(self) -> list[tuple[int, list[int]]]:
        """Return the nodes to which it is said on which ranks the run is, and these ranks."""
        if self._core.tree is not None:
            return [(self._core.first_node, list(self._ranks))]
        return list(self._core.by_node(self._ranks).items())

    def _tree(self, shared: TreeConnection) -> TreeConnection:
        if self._own is None:
            return shared
        if not self._own:
            core = self._core
            self._own[0] = TreeConnection(core.mesh_id, core.connections, core.ranks_per_node)
        own = self._own[0]
        assert isinstance(own, TreeConnection)
        return own

    def connections(self, ranks: Iterable[int] | None = None) -> list[FollowedThrough]:
        """Return those to the known nodes of some ranks; by default of all."""
        if self._core.tree is not None:
            return [self.connection(self._core.first_node)]
        by_node = self._core.by_node(self._ranks if ranks is None else ranks)
        return [self.connection(node) for node in by_node if node in self._core.connections]

    def close(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """The run is over: close the connections that nobody else uses.

        Args:
            spawn: starts what takes a little.
        """
        own = list((self._own or {}).values())
        for tree in own:
            if isinstance(tree, TreeConnection):
                tree.close()
        if connections := [one for one in own if isinstance(one, Connection)]:
            spawn(close_all(connections))

    def on_link(self, name: str, up: bool) -> None:
        """A node does not answer any more, or answers again."""
        connections = self._core.connections
        of_run = [node for node in self._core.by_node(self._ranks) if node in connections]
        nodes = {node for node in of_run if connections[node].name == name}
        self._away = self._away - nodes if up else self._away | nodes
        if not up:
            self.linked.add(name)

    def away(self) -> list[Connection]:
        """Return the connections to those that do not answer."""
        return [self._core.connections[node] for node in sorted(self._away) if node in self._core.connections]

    def reachable(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose node answers."""
        there = self._core.connections.keys() - self._away
        return [rank for node, on_node in self._core.by_node(ranks).items() if node in there for rank in on_node]

    def left_out(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return those of the ranks on which the run is not, and what there is to say of each."""
        of_run = frozenset(self._ranks)
        return {
            rank: "not in this run" if self._core.is_node_up(node) else f"out of reach with {self.name_of(rank)}"
            for node, on_node in self._core.by_node(ranks).items()
            for rank in on_node
            if rank not in of_run
        }

    def name_of(self, rank: int) -> str:
        """Return what the node of a rank is called."""
        [node] = self._core.by_node([rank])
        connection = self._core.connections.get(node)
        return f"node {node}" if connection is None else connection.name
