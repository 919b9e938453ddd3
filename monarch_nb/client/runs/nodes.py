"""The nodes of a run: through which connections it is followed, and which of them answer."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.client.connections.connection import Connection
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
        self._own: dict[int, Connection] | None = {} if own_connections else None
        self._away: set[int] = set()  # those that do not answer

    def connection(self, node: int) -> Connection:
        """Return the connection that the run is followed through on a node."""
        shared = self._core.connections[node]
        if self._own is None:
            return shared
        if node not in self._own:
            self._own[node] = shared.again()
        return self._own[node]

    def connections(self, ranks: Iterable[int] | None = None) -> list[Connection]:
        """Return those to the known nodes of some ranks; by default of all."""
        by_node = self._core.by_node(self._ranks if ranks is None else ranks)
        return [self.connection(node) for node in by_node if node in self._core.connections]

    @property
    def own_connections(self) -> list[Connection]:
        """Those that nobody else uses, and that are to be closed when the run is over."""
        return list((self._own or {}).values())

    def on_link(self, name: str, up: bool) -> None:
        """A node does not answer any more, or answers again."""
        connections = self._core.connections
        of_run = [node for node in self._core.by_node(self._ranks) if node in connections]
        nodes = {node for node in of_run if connections[node].name == name}
        self._away = self._away - nodes if up else self._away | nodes

    def reachable(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose node answers."""
        there = self._core.connections.keys() - self._away
        return [rank for node, on_node in self._core.by_node(ranks).items() if node in there for rank in on_node]

    def name_of(self, rank: int) -> str:
        """Return what the node of a rank is called."""
        [node] = self._core.by_node([rank])
        connection = self._core.connections.get(node)
        return f"node {node}" if connection is None else connection.name
