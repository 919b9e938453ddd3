"""The meshes of a reservation: the main one, and those beside it that `spawn_procs` makes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.facts.actor_infos import ActorInfo, actor_infos
from monarch_nb.client.pools.facts.held import HeldReservation, MeshParts
from monarch_nb.client.pools.leasing.beside import Place, checked, spawn_beside, stop_beside
from monarch_nb.client.pools.leasing.claims import Claim
from monarch_nb.client.reservations.needs import Holding
from monarch_nb.client.reservations.placing import main_of, specs_like_main
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, NoSuchMesh, TargetError, UsageError
from monarch_nb.proto import allocator_pb2 as pb


class Meshes(Mapping[str, Mesh]):
    """The meshes of a reservation by name: the main one first, then those beside it, oldest first; of several that are
    called alike the newest is meant. Nodes are asked anew each time. Coroutines run on the background loop.

    Args:
        reservation: theirs.
        held: what its nodes say of it.

    Attributes:
        with_actors: the ids of those that are known to have actors.

    Example:
        >>> monarch_nb.attach("dev").meshes["judges"].run("rank").values  # doctest: +SKIP
        [0, 1]
    """

    def __init__(self, reservation: Holding, held: HeldReservation) -> None:
        self._reservation = reservation
        self._places = _places(held)
        self._known: dict[str, Mesh] = {}
        self._grown: set[str] = set()
        """Those that came with more nodes: nobody else replaces them."""
        self.with_actors: set[str] = set()

    def _find(self) -> dict[str, Mesh]:
        return {mesh.name: mesh for mesh in self.now()}

    def __getitem__(self, name: str) -> Mesh:
        call(_started((self._reservation.id, name)))
        found = self._find()
        if name not in found:
            there = ", ".join(found)
            raise NoSuchMesh(f"no mesh {name!r} in {self._reservation.name}: it has {there}")
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._find())

    def __len__(self) -> int:
        return len(self._find())

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._find().values()))

    def now(self) -> list[Mesh]:
        """As `all`, from any other thread."""
        return call(self.all())

    @property
    def addresses(self) -> list[str]:
        """The nodes, as other nodes know them, in their order."""
        return [self._places[rank][0].node_address for rank in sorted(self._places)]

    def move_to(self, held: HeldReservation) -> None:
        """Other nodes have places of the reservation, and meshes may be over others. On the background loop."""
        self._places = _places(held)
        for mesh_id, parts in held.meshes.items():
            if mesh := self.known(mesh_id):
                mesh.core.be_over(parts.connections(held), parts.extent)

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
        main, told = self._reservation.mesh, held.meshes
        for mesh_id, parts in told.items():
            if mesh_id != main.id and mesh_id not in self._known:
                self._add(mesh_id, parts, parts.connections(held))
        self._grown = {mesh_id for mesh_id, parts in told.items() if parts.spec.grown}
        there = [mesh_id for mesh_id in self._known if mesh_id in told]
        there.sort(key=lambda mesh_id: not told[mesh_id].lost)  # what is left of one hides no whole one of its name
        self._known = {mesh_id: self._known[mesh_id] for mesh_id in there}
        self.with_actors &= told.keys()
        return [main, *self._known.values()]

    def _add(self, mesh_id: str, parts: MeshParts, connections: dict[int, Connection]) -> Mesh:
        mesh = self._known[mesh_id] = Mesh(mesh_id, parts.spec.name, parts.extent, self._reservation, connections)
        return mesh

    async def spawn(
        self,
        nodes: Sequence[str],
        per_host: Mapping[str, int],
        name: str,
        environment: Mapping[str, str] | None = None,
        *,
        python: str = "",
        replaces: bool = False,
    ) -> Mesh:
        """Start rank processes beside the main mesh.

        Args:
            nodes: the addresses of those on which they are to be.
            per_host: how many on each.
            environment: added to what the ranks of the main mesh have.
            python: their interpreter, on the nodes; by default that of the main mesh.
            replaces: meshes of that name are stopped first, unless `grow` has made them.

        Raises:
            UsageError: a name or a shape that can not be had.
            TargetError: a node is none of the reservation's.
            SpawnError: they could not be started.
        """
        checked(name, per_host)
        key, starting = (self._reservation.id, name), asyncio.get_running_loop().create_future()
        _starting[key] = starting
        try:
            return await self._spawn(nodes, per_host, name, environment or {}, python, replaces)
        finally:
            starting.set_result(None)
            if _starting.get(key) is starting:
                del _starting[key]

    async def _spawn(
        self,
        nodes: Sequence[str],
        per_host: Mapping[str, int],
        name: str,
        environment: Mapping[str, str],
        python: str,
        replaces: bool,
    ) -> Mesh:
        by_address = {place[0].node_address: place for place in self._places.values()}
        if strange := [node for node in nodes if node not in by_address]:
            raise TargetError(f"{', '.join(strange)}: no node of {self._reservation.name}")
        if replaces:
            known = await self.all()
            if any(mesh.id in self._grown and mesh.name == name for mesh in known):
                raise UsageError(
                    f"{self._reservation.name} has a mesh {name} that grow has made: choose another name, or end that "
                    f"one first (%mesh stop {name})"
                )
            await asyncio.gather(*(self.stop(mesh.id) for mesh in known if mesh.name == name))
        places = [_with_python(by_address[node], python) for node in nodes]
        mesh_id = await spawn_beside(places, name, per_host, environment)
        spec = pb.SpawnRequest()
        spec.CopyFrom(places[0][1])
        spec.name, spec.ranks = name, math.prod(per_host.values())
        spec.world_size = spec.ranks * len(places)
        del spec.extent[:]
        hosts = {} if "hosts" in per_host else {"hosts": len(places)}
        spec.extent.extend(pb.Axis(name=label, size=size) for label, size in {**hosts, **per_host}.items())
        parts = MeshParts(spec, dict(enumerate(range(len(places)))))
        return self._add(mesh_id, parts, {number: place[0] for number, place in enumerate(places)})

    async def stop(self, mesh_id: str) -> list[str]:
        """End the rank processes of a mesh beside the main one; fine when they have ended. Return the names of nodes
        that do not answer."""
        mesh = self._known.pop(mesh_id, None)
        self.with_actors.discard(mesh_id)
        nodes = list(mesh.core.connections.values()) if mesh else [place[0] for place in self._places.values()]
        silent = await stop_beside(nodes, self._reservation.id, mesh_id)
        if mesh is not None:
            mesh.core.close()
        return [node.name for node in silent]

    def claim(self, name: str) -> Claim:
        """Return what lets one client at a time start a mesh of that name: the first node decides."""
        return Claim(self._places[min(self._places)][0], self._reservation.id, name)

    def close(self) -> None:
        """All have ended, also those that only another Reservation object of this process has met."""
        for core in MeshCore.of_reservation(self._reservation.id):
            core.close()

    async def actor_infos(self) -> list[ActorInfo]:
        """Ask all ranks for their actors; those that do not answer are missing."""

        async def ask(mesh: Mesh) -> tuple[str, dict[int, pb.RankReply]]:
            ranks = [rank for rank in mesh.ranks if rank not in mesh.core.dead]
            try:
                return mesh.name, await mesh.core.control(ranks, timeout_s=patience(1.0), actors=True)
            except MonarchNbError:  # it was stopped meanwhile
                return mesh.name, {}

        told = await asyncio.gather(*(ask(mesh) for mesh in await self.all()))
        return actor_infos({name: {rank: reply.actors for rank, reply in ranks.items()} for name, ranks in told})


def stopped_line(reservation: str, name: str, silent: Sequence[str]) -> str:
    """Return what there is to say when a mesh was stopped; `silent`: the nodes that do not answer."""
    do, that_is = ("does", "that is") if len(silent) == 1 else ("do", "those are")
    later = f"; {', '.join(silent)} {do} not answer: its ranks there end when {that_is} back" if silent else ""
    return f"{name} of {reservation} has ended{later}"


_starting: dict[tuple[str, str], asyncio.Future[None]] = {}
"""Meshes that this process is just starting, by reservation and name: `spawn_procs` does not wait for them. Of the
background loop."""


async def _started(key: tuple[str, str]) -> None:
    """Wait until a mesh is there, or could not be started: who started it is told why."""
    while starting := _starting.get(key):
        await asyncio.wait([starting])


def _with_python(place: Place, python: str) -> Place:
    """Return a place whose ranks have an interpreter of their own, if one is named."""
    connection, like = place
    spec = pb.SpawnRequest()
    spec.CopyFrom(like)
    spec.python = python or like.python
    return connection, spec


def _places(held: HeldReservation) -> dict[int, Place]:
    specs, like = specs_like_main(held), main_of(held).spec
    return {rank: (connection, specs.get(rank, like)) for rank, connection in held.connections.items()}
