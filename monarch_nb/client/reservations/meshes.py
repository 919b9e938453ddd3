"""The meshes of a reservation: the main one, and those beside it that `spawn_procs` makes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.actor_infos import ActorInfo, actor_infos
from monarch_nb.client.pools.beside import Place, checked, spawn_beside, stop_beside
from monarch_nb.client.pools.pool import HeldReservation
from monarch_nb.client.reservations.needs import Holding
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import MonarchNbError, TargetError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import Extent

ACTORS_TIMEOUT_S = 1.0


class Meshes:
    """The meshes of a reservation, as far as this process has met them. Coroutines run on the background loop.

    Args:
        reservation: theirs.
        held: what its nodes say of it.

    Attributes:
        with_actors: the ids of those that are known to have actors.
    """

    def __init__(self, reservation: Holding, held: HeldReservation) -> None:
        self._reservation = reservation
        self._places: dict[int, Place] = {
            rank: (connection, mesh.spec)
            for rank, (connection, status) in held.nodes.items()
            for mesh in status.meshes
            if mesh.name == MAIN_MESH
        }
        like = next(iter(self._places.values()))[1]
        self._places |= {rank: (connection, like) for rank, connection in held.absent.items()}
        self._known: dict[str, Mesh] = {}
        self.with_actors: set[str] = set()

    @property
    def addresses(self) -> list[str]:
        """The nodes, as other nodes know them, in their order."""
        return [self._places[rank][0].node_address for rank in sorted(self._places)]

    def known(self, mesh_id: str) -> Mesh | None:
        """Return a mesh by its id, if this process has met it."""
        main = self._reservation.mesh
        return main if mesh_id == main.id else self._known.get(mesh_id)

    async def all(self) -> list[Mesh]:
        """Ask the nodes; return the main mesh and then the others, oldest first.

        Raises:
            ReservationNotFound: it was released.
        """
        held = await self._reservation.held()
        nodes: dict[str, dict[int, tuple[Connection, pb.SpawnRequest]]] = {}
        for connection, status in held.nodes.values():
            for mesh in status.meshes:
                nodes.setdefault(mesh.mesh_id, {})[mesh.spec.node_rank] = (connection, mesh.spec)
        main = self._reservation.mesh
        for mesh_id, places in nodes.items():
            if mesh_id != main.id and mesh_id not in self._known:
                self._add(mesh_id, places)
        self._known = {mesh_id: mesh for mesh_id, mesh in self._known.items() if mesh_id in nodes}
        self.with_actors &= nodes.keys()
        return [main, *self._known.values()]

    def _add(self, mesh_id: str, places: Mapping[int, Place]) -> Mesh:
        spec = next(iter(places.values()))[1]
        hosts = spec.world_size // spec.ranks
        sizes = {axis.name: axis.size for axis in spec.extent}
        if list(sizes)[:1] != ["hosts"] or sizes["hosts"] != hosts:
            sizes = {"hosts": hosts, "procs": spec.ranks}
        connections = {number: connection for number, (connection, _) in places.items()}
        mesh = Mesh(mesh_id, spec.name, Extent(sizes), self._reservation, connections)
        self._known[mesh_id] = mesh
        return mesh

    async def spawn(
        self,
        nodes: Sequence[str],
        per_host: Mapping[str, int],
        name: str,
        environment: Mapping[str, str] | None = None,
        *,
        replaces: bool = False,
    ) -> Mesh:
        """Start rank processes beside the main mesh.

        Args:
            nodes: the addresses of those on which they are to be.
            per_host: how many on each.
            environment: added to what the ranks of the main mesh have.
            replaces: meshes of that name are stopped first.

        Raises:
            UsageError: a name or a shape that can not be had.
            TargetError: a node is none of the reservation's.
            SpawnError: they could not be started.
        """
        checked(name, per_host)
        by_address = {place[0].node_address: place for place in self._places.values()}
        if strange := [node for node in nodes if node not in by_address]:
            raise TargetError(f"{', '.join(strange)}: no node of {self._reservation.name}")
        if replaces:
            await asyncio.gather(*(self.stop(mesh.id) for mesh in await self.all() if mesh.name == name))
        places = [by_address[node] for node in nodes]
        mesh_id = await spawn_beside(places, name, per_host, environment or {})
        spec = pb.SpawnRequest()
        spec.CopyFrom(places[0][1])
        spec.name, spec.ranks = name, math.prod(per_host.values())
        spec.world_size = spec.ranks * len(places)
        del spec.extent[:]
        hosts = {} if "hosts" in per_host else {"hosts": len(places)}
        spec.extent.extend(pb.Axis(name=label, size=size) for label, size in {**hosts, **per_host}.items())
        return self._add(mesh_id, {number: (place[0], spec) for number, place in enumerate(places)})

    async def stop(self, mesh_id: str) -> None:
        """End the rank processes of a mesh beside the main one; fine when they have ended."""
        mesh = self._known.pop(mesh_id, None)
        self.with_actors.discard(mesh_id)
        nodes = list(mesh.core.connections.values()) if mesh else [place[0] for place in self._places.values()]
        await stop_beside(nodes, self._reservation.id, mesh_id)
        if mesh is not None:
            mesh.core.close()

    def close(self) -> None:
        """All have ended."""
        for mesh in (self._reservation.mesh, *self._known.values()):
            mesh.core.close()

    async def actor_infos(self) -> list[ActorInfo]:
        """Ask all ranks for their actors; those that do not answer are missing."""

        async def ask(mesh: Mesh) -> tuple[str, dict[int, pb.RankReply]]:
            ranks = [rank for rank in mesh.ranks if rank not in mesh.core.dead]
            try:
                return mesh.name, await mesh.core.control(ranks, timeout_s=ACTORS_TIMEOUT_S, actors=True)
            except MonarchNbError:  # it was stopped meanwhile
                return mesh.name, {}

        told = await asyncio.gather(*(ask(mesh) for mesh in await self.all()))
        return actor_infos({name: {rank: reply.actors for rank, reply in ranks.items()} for name, ranks in told})
