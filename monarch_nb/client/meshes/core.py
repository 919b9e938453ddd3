"""What a mesh and its slices share: its ranks, and the runs on them that this process follows."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakMethod, WeakValueDictionary, finalize

from monarch_nb.client.connections import tree
from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.client.runs.run import Run
from monarch_nb.deaths import describe_death
from monarch_nb.proto import allocator_pb2 as pb


class MeshCore(MeshRanks):
    """What a mesh and its slices share."""

    _cores: ClassVar[WeakValueDictionary[str, MeshCore]] = WeakValueDictionary()

    def __init__(self, mesh_id: str, connections: dict[int, Connection], ranks_per_node: int) -> None:
        super().__init__(mesh_id, connections, ranks_per_node)
        self.runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """Those that this process follows, by id."""
        self.stuck: list[Run] = []
        """Those that did not stop at the last interrupt of all: they know that they had the time."""

        self.stuck_actors: set[int] = set()
        """The ranks whose actors did not, then."""

    @classmethod
    def get(cls, mesh_id: str, connections: dict[int, Connection], ranks_per_node: int) -> MeshCore:
        """Return the one core of a mesh in this process."""
        core = cls._cores.get(mesh_id)
        if core is None:
            core = cls._cores[mesh_id] = cls(mesh_id, connections, ranks_per_node)
            post(core._listen)
        core.connections.update(connections)
        return core

    def _listen(self) -> None:
        if len(self.connections) > tree.DIRECT_NODES and self.first_node in self.connections:
            method = WeakMethod(self._on_rank_died)

            def on_death(died: pb.RankDied) -> None:
                if tell := method():
                    tell(died)

            self.tree = tree.TreeConnection(self.mesh_id, self.connections, self.ranks_per_node, on_death)
            finalize(self, post, self.tree.close).atexit = False
            return
        for connection in self.connections.values():
            connection.mesh_deaths[self.mesh_id] = self._on_rank_died
            connection.ensure_session()

    def _on_rank_died(self, died: pb.RankDied) -> None:
        self.dead[died.rank] = describe_death(died.death)

    def close(self) -> None:
        """The mesh has ended: nobody says anything of it any more. From any thread."""
        post(self._close)

    def _close(self) -> None:
        if self.tree is not None:
            self.tree.close()
            self.tree = None  # whoever runs something all the same learns from the nodes that it is gone

    def add(self, run: Run) -> None:
        """From now on this process follows a run, by the id that it has now."""
        self.runs[run.id] = run

    def under_way(self) -> list[Run]:
        """Return the runs of this process that allocators may not know yet, oldest first. From any thread."""
        runs = [run for reference in self.runs.valuerefs() if (run := reference()) is not None]
        return [run for run in runs if not (run.number or run.done)]
