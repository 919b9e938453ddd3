"""The meshes of a reservation: the main one, and those beside it that `spawn_procs` makes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.hosts import ProcMesh, find_actors
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.actor_infos import ActorInfo, actor_infos
from monarch_nb.client.pools.held import HeldReservation, MeshParts
from monarch_nb.client.pools.leasing import Claim, Place, checked, spawn_beside, stop_beside
from monarch_nb.client.reservations.changing import main_of, specs_like_main
from monarch_nb.config import MONARCH_MESH, patience
from monarch_nb.errors import MonarchNbError, NoSuchMesh, TargetError, UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.times import duration
from monarch_nb.worker.saving.asked import LoadReport, SaveReport

if TYPE_CHECKING:
    from monarch_nb.client.reservations.reservation import Reservation


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

    def __init__(self, reservation: Reservation, held: HeldReservation) -> None:
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
        """Other nodes have places of the reservation. On the background loop."""
        self._places = _places(held)
        for mesh_id, parts in held.meshes.items():
            if mesh := self.known(mesh_id):
                mesh.core.be_over(parts.connections(held))

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
        # What a node that was away still has of one that was stopped hides no whole one of its name.
        there.sort(key=lambda mesh_id: len(told[mesh_id].places) == told[mesh_id].hosts)
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

        async def ask(mesh: Mesh) -> tuple[str, dict[int, wire.ControlReply]]:
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


def restarted_line(part: Mesh, elapsed_s: float) -> str:
    """Return what there is to say when the ranks of a part were restarted."""
    restarted = f"{name_ranks(part.ranks)} restarted in {duration(elapsed_s)}"
    if part.name == MONARCH_MESH:
        again = f"{part.reservation.name}.monarch() starts the workers"
        return f"{restarted}: Monarch's workers and their actors are gone there; {again} again"
    lost = f"{restarted}: variables and imports are gone"
    if len(part.ranks) == part.extent.size:
        return lost
    return f"{lost} there, the others keep theirs; call dist.init_process_group() on all ranks again"


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


class NoSuchActors(KeyError):
    """No actors of a name live on a reservation. The text names those that do."""

    def __str__(self) -> str:
        return str(self.args[0])


class HeldActors(ActorMesh):
    """A mesh of actors that is saved and loaded by what its attributes hold. An endpoint of its class that is called
    `save` or `load` is meant by this name, as in every mesh of actors."""

    _ranks: Any = None

    def __getattr__(self, name: str) -> Any:
        held = {"save": self._save, "load": self._load}
        if name in held and name not in self._facts.endpoints:
            return held[name]
        return super().__getattr__(name)

    def _save(self, directory: str | PathLike[str], names: Iterable[str] = (), **options: Any) -> SaveReport:
        """See Mesh.save."""
        report: SaveReport = self._having().save(directory, names, actors=self._handle.name, **options)
        return report

    def _load(self, directory: str | PathLike[str], names: Iterable[str] = (), **options: Any) -> LoadReport:
        """See Mesh.load."""
        report: LoadReport = self._having().load(directory, names, actors=self._handle.name, **options)
        return report

    def _having(self) -> Any:
        """Return the ranks that have them.

        Raises:
            UsageError: it is a part: its ranks are not known.
        """
        if self._ranks is None:
            raise UsageError(
                "a slice of actors can not be saved: save all of them, or use mesh.select(…).save(actors=…)"
            )
        there = self._ranks.run(f"{self._handle.name!r} in actors", sync=False).values
        return self._ranks.select(rank for rank, is_there in zip(self._ranks.ranks, there, strict=True) if is_there)


class LiveActors(Mapping[str, Any]):
    """The meshes of actors on the ranks of a reservation, by name; whoever spawned them, in whichever kernel. Ranks are
    asked anew each time.

    Example:
        >>> trainers = monarch_nb.attach("dev").actors["trainers"]  # doctest: +SKIP
    """

    def __init__(self, reservation: Reservation, meshes: Meshes) -> None:
        self._reservation, self._meshes = reservation, meshes

    def _find(self) -> dict[str, ActorMesh]:
        found: dict[str, ActorMesh] = {}
        for mesh in reversed(call(self._meshes.all())):  # of equal names that of the main mesh is meant
            call(mesh.core.status())
            alive = [rank for rank in mesh.ranks if rank not in mesh.core.dead]
            if alive:
                part = mesh.select(alive)
                procs = ProcMesh.of(mesh.name, {"ranks": len(alive)}, part.addresses)
                if here := find_actors(procs).get(patience(10.0)):
                    self._meshes.with_actors.add(mesh.id)
                    for name, actors in here.items():
                        found[name] = held = HeldActors(actors._handle, actors._view)
                        held._ranks = part
        return found

    def __getitem__(self, name: str) -> Any:
        found = self._find()
        if name not in found:
            there = f"its actors are {', '.join(sorted(found))}" if found else "it has none"
            raise NoSuchActors(f"no actors {name!r} on {self._reservation.name}: {there}")
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._find()))

    def __len__(self) -> int:
        return len(self._find())

    def __repr__(self) -> str:
        found = self._find()
        if not found:
            return f"no actors on {self._reservation.name}"
        return "\n".join(f"{name}: {mesh!r}" for name, mesh in sorted(found.items()))
