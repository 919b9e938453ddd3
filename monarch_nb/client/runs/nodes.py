"""The nodes of a run: through which session it is followed, and which of them answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.session import MeshSession
from monarch_nb.client.runs.waits import NOT_ON_RUN

if TYPE_CHECKING:
    from monarch_nb.client.meshes.core import MeshCore


class RunNodes:
    """The nodes of the ranks that a run is on. Everything here runs on the background loop.

    Args:
        core: the ranks of the mesh.
        ranks: those of the run.
        is_apart: it is followed once more in this process, beside whoever follows it already.
    """

    def __init__(self, core: MeshCore, ranks: Iterable[int], *, is_apart: bool) -> None:
        self._core, self._ranks = core, tuple(ranks)
        self._is_apart = is_apart
        self._own: MeshSession | None = None
        self._away: set[int] = set()  # those that do not answer
        self.linked: set[str] = set()
        """Names of those that did not answer for a while."""

    @property
    def session(self) -> MeshSession:
        """What the run is followed through."""
        if not self._is_apart:
            return self._core.session
        if self._own is None:
            self._own = MeshSession(self._core.mesh_id, self._core.connections, self._core.ranks_per_node)
        return self._own

    def withdraw_cancel(self, run_id: str, ranks: Iterable[int]) -> None:
        """Do not cancel the run when the node of one of these ranks is there again."""
        self.session.withdraw_cancel(run_id, self._core.by_node(ranks).keys())

    def close(self) -> None:
        """The run is over: end the session that nobody else uses."""
        if self._own is not None:
            self._own.close()

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
            rank: NOT_ON_RUN if self._core.is_node_up(node) else f"went out of reach with {self.name_of(rank)}"
            for node, on_node in self._core.by_node(ranks).items()
            for rank in on_node
            if rank not in of_run
        }

    def name_of(self, rank: int) -> str:
        """Return what the node of a rank is called."""
        [node] = self._core.by_node([rank])
        connection = self._core.connections.get(node)
        return f"node {node}" if connection is None else connection.name
