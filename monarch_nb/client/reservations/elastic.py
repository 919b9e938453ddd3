"""A reservation's nodes, which others may take the places of, and of which there may be more or fewer."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.attachment import Attachment
from monarch_nb.client.reservations.further import Asking
from monarch_nb.client.reservations.growing import Resized, grow, shrink, words
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.placing import copied_nodes
from monarch_nb.client.reservations.replacing import Replaced, replace
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.times import Duration


class Elastic(ABC):
    """The part of a Reservation that changes its nodes, and follows when others do.

    Attributes:
        nodes: how many there are.
        mesh: the main mesh, over all of them.
    """

    id: str
    name: str
    nodes: int
    mesh: Mesh
    meshes: Meshes
    files: SyncedFiles
    _pool: Pool
    _connections: dict[int, Connection]
    _revision: int
    _attachment: Attachment

    @abstractmethod
    async def held(self, *, memory: bool = False) -> HeldReservation:
        """Return what its nodes say, as they say it. On the background loop."""

    def replace(
        self,
        *nodes: str | int | Sequence[str | int],
        wait: bool | Duration = False,
        time: Duration | None = None,
        progress: Progress | None = None,
    ) -> list[Replaced]:
        """Put free nodes of the pool in the places of nodes, or new ones of the engine that it has its nodes from, with
        new ranks of the same numbers. The other ranks keep their variables, and lose their process groups. A node that
        was replaced ends its ranks when it answers again.

        Args:
            nodes: names or numbers, also a list of them; by default those that do not answer. One that answers loses
                its ranks at once.
            wait: for what others hold, as with `reserve`. An engine is waited for in any case; at most so long, when a
                time is said.
            time: for which the engine is asked; by default what is left of the reservation's time.
            progress: told what is being done.

        Raises:
            UsageError: all nodes answer and none is named, or there is no such node.
            CapacityError: no node has enough free; nothing has changed.
            ReservationConflict: somebody else has just replaced nodes of it.
            SpawnError: the ranks could not be started.
        """
        say = progress or _silent
        replaced, held = replace(
            self._pool, self.id, self.name, words(*nodes), self.files.record, Asking(wait, time), say
        )
        call(self._move_to(held))
        return replaced

    def grow(
        self,
        nodes: int | str,
        *,
        into: str = "",
        mesh: str = "",
        wait: bool | Duration = False,
        time: Duration | None = None,
        progress: Progress | None = None,
    ) -> Resized:
        """Have more nodes of the pool; where they come as jobs of an engine, that is asked for another one when not so
        many are free. All meshes stay as they are, with their variables, on the nodes that they are on; a new one is
        over all nodes, `meshes["grown"]`, with as many ranks on each as the main mesh. Or, with `into`, one that is
        there starts anew on all nodes.

        Args:
            nodes: how many there are to be, or "+2" for two more; when there are so many, and a mesh is over all of
                them, nothing happens.
            into: "main", or the name of another mesh: its ranks start anew on all nodes, their variables are lost.
            mesh: what the new mesh is called, instead of "grown".
            wait: for what others hold, as with `reserve`. An engine is waited for in any case; at most so long, when a
                time is said.
            time: for which the engine is asked; by default what is left of the reservation's time.
            progress: told what is being done.

        Raises:
            UsageError: a mesh of that name is there, or there are more nodes already.
            NoSuchMesh: there is none that is called as `into` says.
            CapacityError: not so many nodes have enough free; nothing has changed.
            NodeUnreachable: a node does not answer, so that no ranks can start there.
            ReservationConflict: somebody else has just changed its nodes.
            SpawnError: ranks could not be started on the new nodes; nothing has changed.

        Example:
            >>> print(dev.grow(4))  # doctest: +SKIP
            dev has 4 nodes: host3, host4 are new
            grown has 16 ranks on all of them: %%mesh --mesh grown runs a cell there; main stays as it is
            >>> dev.meshes["grown"].run("rank").values[-1]  # doctest: +SKIP
            15
        """
        say = progress or _silent
        asking = Asking(wait, time)
        resized, held = grow(self._pool, self.id, self.name, nodes, into, mesh, self.files.record, asking, say)
        call(self._move_to(held))
        return resized

    def shrink(
        self,
        nodes: int | str | None = None,
        *,
        node: str | int | Sequence[str | int] = (),
        into: str = "",
        progress: Progress | None = None,
    ) -> Resized:
        """Give nodes back. A mesh that has ranks there starts anew on those that are left, numbered in their order, if
        `into` says so.

        Args:
            nodes: how many are to be left, or "-1" for one less: those that do not answer go, then the last ones.
            node: name or number of the one to give back instead, or several.
            into: "main", or the name of another mesh: its ranks start anew on all nodes that are left, their variables
                are lost.
            progress: told what is being done.

        Raises:
            UsageError: a mesh has ranks there and `into` does not name it, or no node would be left.
            NodeUnreachable: a node that is to be left does not answer.
            ReservationConflict: somebody else has just changed its nodes.
        """
        say = progress or _silent
        resized, held = shrink(self._pool, self.id, self.name, nodes, words(node), into, self.files.record, say)
        call(self._move_to(held))
        return resized

    def stop_mesh(self, name: str) -> list[str]:
        """End the ranks of a mesh beside the main one, and forget it; its nodes are held on. Return the names of nodes
        that do not answer: the ranks there end when they do.

        Raises:
            UsageError: it is the main mesh.
            NoSuchMesh: there is none of that name.
        """
        if name == MAIN_MESH:
            raise UsageError(f"{MAIN_MESH} ends with its reservation: %mesh release {self.name}")
        return call(self.meshes.stop(self.meshes[name].id))

    def _node_of(self, rank: int) -> Connection:
        """Return the node of a rank of the main mesh. Nodes that came later, and have none, come after these."""
        return self._connections.get(rank // self.mesh.core.ranks_per_node) or self.mesh.core.connection_of(rank)

    def _on_members_changed(self, revision: int) -> None:
        if revision > self._revision:
            self._following = asyncio.get_running_loop().create_task(self._follow_members())

    async def _follow_members(self) -> None:
        with contextlib.suppress(MonarchNbError):  # it was released, or nobody answers just now
            await self._move_to(await self.held())

    async def _move_to(self, held: HeldReservation) -> None:
        """Know the nodes that have places of it now. On the background loop."""
        if held.revision <= self._revision:
            return
        self._revision, self.nodes = held.revision, held.facts.nodes
        before, self._connections = self._connections, held.connections
        was, now = set(before.values()), set(self._connections.values())
        copied, had_copies = copied_nodes(held), self.files.connections.keys()
        for node, new in self._connections.items():
            old = before.get(node)
            if old is not None and old not in now and new not in was:
                MeshCore.replace(self.id, old, new)
            if old is not new or (node in had_copies) != (node in copied):
                self.files.put_node(node, new, copied=node in copied)
        for node in before.keys() - self._connections.keys():
            self.files.drop_node(node)
        self.meshes.move_to(held)
        self._attachment.move_to(self._connections)


def _silent(_: str) -> None:
    pass
