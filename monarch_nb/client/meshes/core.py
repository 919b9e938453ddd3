"""What a mesh and its slices share: its ranks, and the runs on them that this process follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakValueDictionary

from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.client.runs.interrupting import Doomed
from monarch_nb.client.runs.run import Run
from monarch_nb.config import RESTARTED
from monarch_nb.proto import run_pb2
from monarch_nb.provision.jobs import job_of_pool
from monarch_nb.shape import Extent
from monarch_nb.times import time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.reservations.reservation import Reservation

RUN_AGAIN = "run the cells that define the variables, then this one again"


def taken_over(old: str, new: str, by: str = "") -> str:
    """Return why what ranks ran ends when another node gets the place of theirs."""
    what = f"{by} put {new} in the place of {old}" if by else f"{new} has the place of its node, {old}"
    return f"{RESTARTED}: {what}; {RUN_AGAIN}"


class MeshCore(MeshRanks):
    """What a mesh and its slices share.

    Attributes:
        extent: of the whole mesh.
    """

    _cores: ClassVar[WeakValueDictionary[str, MeshCore]] = WeakValueDictionary()

    def __init__(self, mesh_id: str, connections: dict[int, Connection], extent: Extent) -> None:
        super().__init__(mesh_id, connections, extent.size // extent["hosts"], extent.size)
        self.extent = extent
        self._pool = self._owner = ""
        self.runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """Those that this process follows, by id."""
        self.unstopped: list[Run] = []
        """Those that went on after the last interrupt of all: they know that they had the time to stop."""

        self.saves_behind = False
        """Whether this process has had ranks save in the background, and nobody has waited for it since."""
        self.armed_saves: run_pb2.ArmSaves | None = None
        """What saves this process has armed, also when the nodes are gone."""
        self.doomed_actors = Doomed()
        """The ranks whose actors another one kills."""

    @classmethod
    def get(cls, mesh_id: str, connections: dict[int, Connection], extent: Extent) -> MeshCore:
        """Return the one core of a mesh in this process."""
        core = cls._cores.get(mesh_id)
        if core is None:
            core = cls._cores[mesh_id] = cls(mesh_id, connections, extent)
        core.connections.update(connections)
        post(core._listen)
        return core

    def _listen(self) -> None:
        if not self.is_over:
            self.session.be_over(self.connections)

    def belongs_to(self, reservation: Reservation) -> None:
        """It is a mesh of this reservation."""
        self.reservation_id, self.reservation_name = reservation.id, reservation.name
        self._pool, self._owner = reservation.pool, reservation.owner

    @property
    def replacement(self) -> str:
        """What `%mesh replace` does now about nodes that do not answer; empty where it can do nothing."""
        if self._owner != self.me:
            return ""
        if job := job_of_pool(self._pool):
            return f"%mesh replace asks {job.on} for another in its place"
        pool = pool_object(self._pool)
        members = {one for core in self.of_reservation(self.reservation_id) for one in core.connections.values()}
        others = [one for one in pool.listed if one not in members and one.name not in pool.silent]
        return "%mesh replace puts a free node in its place" if others else ""

    @property
    def known_runs(self) -> list[str]:
        """What the runs that go on as far as this process knows are called, and when they were sent."""
        return [f"{run.name}, sent at {time_of_day(run.submitted_at)}" for run in self.going_on()]

    @classmethod
    def of_reservation(cls, reservation_id: str) -> list[MeshCore]:
        """Return what this process has met of a reservation's meshes."""
        return [core for core in list(cls._cores.values()) if core.reservation_id == reservation_id]

    @classmethod
    def replace(cls, reservation_id: str, old: Connection, new: Connection) -> None:
        """Another node has the place of one in a reservation, with new ranks. On the background loop."""
        for core in cls.of_reservation(reservation_id):
            for node in [node for node, connection in core.connections.items() if connection is old]:
                core._replace(node, old, new)

    def _replace(self, node: int, old: Connection | None, new: Connection) -> None:
        if old is not None:
            self._let_go(node, old, taken_over(old.name, new.name))
        self.connections[node] = new
        for rank in range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node):
            self.dead.pop(rank, None)
        self._listen()

    def be_over(self, connections: Mapping[int, Connection]) -> None:
        """Be told on which nodes the mesh is, as far as that is known. On the background loop."""
        for node, new in connections.items():
            if (old := self.connections.get(node)) is not new:
                self._replace(node, old, new)

    def _let_go(self, node: int, connection: Connection, why: str) -> None:
        """A node has no part of the mesh any more, or another one: what runs there has ended."""
        ranks = range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
        for run in [run for reference in self.runs.valuerefs() if (run := reference()) is not None]:
            run.on_node_replaced(node, ranks, why)
        connection.rest()

    def close(self) -> None:
        """The mesh has ended: nobody says anything of it any more. From any thread."""
        self.is_over = True
        post(self._close)

    def _close(self) -> None:
        for connection in self.connections.values():
            connection.rest()
        if self._session is not None:
            self._session.close()
            self._session = None  # whoever runs something all the same learns from the nodes that it is gone

    def add(self, run: Run) -> None:
        """From now on this process follows a run, by the id that it has now."""
        self.runs[run.id] = run

    def under_way(self) -> list[Run]:
        """Return the runs of this process that allocators may not know yet, oldest first. From any thread."""
        return [run for run in self.going_on() if not run.number]

    def going_on(self) -> list[Run]:
        """Return the runs that this process follows and that are not over as far as it knows, oldest first."""
        runs = [run for reference in self.runs.valuerefs() if (run := reference()) is not None]
        return [run for run in runs if not run.done]
