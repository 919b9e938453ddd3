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
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.attachment import Attachment
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.nodes.further import Asking
from monarch_nb.client.reservations.nodes.growing import Resized, grow, shrink, words
from monarch_nb.client.reservations.nodes.replacing import Replaced, replace
from monarch_nb.client.reservations.placing import copied_nodes
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
        """Replace nodes by free nodes of the pool or by new nodes of its engine. New ranks have the same numbers.

        The other ranks keep their variables, and lose their process groups. A replaced node ends its ranks when it
        answers again.

        Args:
            nodes: names or numbers, or a list of them; by default the nodes that do not answer. A node that answers
                loses its ranks at once.
            wait: wait for what others hold, as for `reserve`. The client always waits for an engine; a time is the
                longest.
            time: how long to ask the engine for; by default what is left of the reservation's time.
            progress: called with a line that says what is being done.

        Returns:
            For each node the old and the new one, and the new ranks.

        Raises:
            UsageError: all nodes answer and you name none, or there is no such node.
            CapacityError: no node has enough free. Nothing has changed.
            ReservationConflict: another client has just replaced nodes of the reservation.
            SpawnError: the ranks could not start.

        Example:
            >>> [(one.old, one.new) for one in dev.replace("host3")]  # doctest: +SKIP
            [('host3', 'host4')]
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
        """Hold more nodes of the pool. If too few are free and an engine brings the nodes, it asks for another job.

        All meshes stay on their nodes with their variables. A new mesh, `meshes["grown"]`, is over all nodes, with as
        many ranks on each as the main mesh. With `into`, an existing mesh starts anew on all nodes instead.

        Args:
            nodes: how many to hold, or "+2" for two more. If you hold so many, and a mesh is over all of them, nothing
                happens.
            into: "main", or the name of another mesh. Its ranks start anew on all nodes, and lose their variables.
            mesh: the name of the new mesh, instead of "grown".
            wait: wait for what others hold, as for `reserve`. The client always waits for an engine; a time is the
                longest.
            time: how long to ask the engine for; by default what is left of the reservation's time.
            progress: called with a line that says what is being done.

        Returns:
            How many nodes you hold now, which are new, and what to run next.

        Raises:
            UsageError: a mesh has that name already, or you hold more nodes already.
            NoSuchMesh: no mesh has the name `into`.
            CapacityError: too few nodes have enough free. Nothing has changed.
            NodeUnreachable: a node does not answer, so no ranks can start there.
            ReservationConflict: another client has just changed the nodes.
            SpawnError: ranks could not start on the new nodes. Nothing has changed.

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
        """Give nodes back. The mesh that `into` names starts anew on the nodes that are left, numbered in their order.

        Args:
            nodes: how many to keep, or "-1" for one less. Nodes that do not answer go first, then the last ones.
            node: the name or number of the node to give back instead, or a list of them.
            into: "main", or the name of another mesh. Its ranks start anew on all nodes that are left, and lose their
                variables.
            progress: called with a line that says what is being done.

        Returns:
            How many nodes you hold now, and what to run next.

        Raises:
            UsageError: a mesh has ranks there and `into` does not name it, or no node would be left.
            NodeUnreachable: a node that you keep does not answer.
            ReservationConflict: another client has just changed the nodes.

        Example:
            >>> print(dev.shrink(2, into="main"))  # doctest: +SKIP
        """
        say = progress or _silent
        resized, held = shrink(self._pool, self.id, self.name, nodes, words(node), into, self.files.record, say)
        call(self._move_to(held))
        return resized

    def stop_mesh(self, name: str) -> list[str]:
        """End the ranks of a mesh beside the main mesh, and forget the mesh. You still hold its nodes.

        Returns:
            The names of nodes that do not answer. The ranks there end when the nodes are back.

        Raises:
            UsageError: it is the main mesh.
            NoSuchMesh: no mesh has that name.
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
