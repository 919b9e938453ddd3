"""A reservation, put together from what its nodes answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.config import MAIN_MESH
from monarch_nb.ground.account import own_name
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.shape import Extent

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity


def current_owner(identity: Identity | None = None) -> str:
    """Return who we are to allocators: on this machine its user, to those of a network the certificate's name."""
    return identity.name if identity else own_name()


def is_called(name: str, called: str, owner: str) -> bool:
    """Whether NAME or OWNER/NAME means what its owner has called so.

    Example:
        >>> [is_called(name, "dev", "alice") for name in ("dev", "alice/dev", "bob/dev")]
        [True, True, False]
    """
    whose, _, short = name.rpartition("/")
    return called == short and whose in ("", owner)


@dataclass(frozen=True)
class MeshParts:
    """A mesh of a reservation: each of its nodes has a part of it.

    Attributes:
        spec: what some part was started with. places: the place in the reservation of the node that has each part, by
            the part's number; a part is missing when nobody says which of the nodes that do not answer has it.
        lost: how many parts no node of the reservation has any more, or not yet: it is being started, or was on nodes
            that were given back.
    """

    spec: pb.SpawnRequest
    places: Mapping[int, int]
    lost: int = 0

    @property
    def hosts(self) -> int:
        """How many parts there are."""
        return self.spec.world_size // self.spec.ranks

    @property
    def extent(self) -> Extent:
        """Its labelled shape, which begins with its hosts."""
        sizes = {axis.name: axis.size for axis in self.spec.extent}
        if list(sizes)[:1] != ["hosts"] or sizes["hosts"] != self.hosts:
            sizes = {"hosts": self.hosts, "procs": self.spec.ranks}
        return Extent(sizes)

    def part(self, number: int) -> pb.SpawnRequest:
        """Return what one of its parts is started with, but for what is its node's."""
        spec = pb.SpawnRequest()
        spec.CopyFrom(self.spec)
        spec.node_rank, spec.first_rank = number, number * spec.ranks
        return spec

    def connections(self, held: HeldReservation) -> dict[int, Connection]:
        """Return the connections to its nodes, by the numbers of the parts."""
        nodes = held.connections
        return {number: nodes[place] for number, place in sorted(self.places.items())}


@dataclass
class HeldReservation:
    """A reservation put together from its nodes' answers.

    Attributes:
        nodes: (connection, what it said) by node rank; nodes that do not answer are missing, and so are those whose
            places others have.
        absent: those, by node rank, when the reservation is confirmed: then its nodes know each other.
        members, revision: what they know: all nodes, and how often these have changed.
    """

    reservation_id: str
    nodes: dict[int, tuple[Connection, pb.ReservationStatus]]
    absent: dict[int, Connection] = field(default_factory=dict)
    members: list[files_pb2.Peer] = field(default_factory=list)
    revision: int = 0

    @property
    def facts(self) -> pb.ReservationStatus:
        """What one of its nodes says that knows best."""
        return max((status for _, status in self.nodes.values()), key=lambda status: status.revision)

    @property
    def shape(self) -> Shape:
        return Shape(self.facts.nodes, self.facts.procs, self.facts.gpus)

    @property
    def main(self) -> MeshParts | None:
        """The main mesh, which is on the first nodes; None when no node says anything of it."""
        return next((mesh for mesh in self.meshes.values() if mesh.spec.name == MAIN_MESH), None)

    @property
    def meshes(self) -> dict[str, MeshParts]:
        """All meshes by id: as those nodes have them that know best."""
        specs: dict[str, pb.SpawnRequest] = {}
        told: dict[str, dict[int, int]] = {}
        newest_first = sorted(self.nodes.items(), key=lambda node: -node[1][1].revision)
        for place, (_, status) in newest_first:
            for mesh in status.meshes:
                specs.setdefault(mesh.mesh_id, mesh.spec)
                told.setdefault(mesh.mesh_id, {}).setdefault(mesh.spec.node_rank, place)
        return {mesh_id: self._parts(spec, told[mesh_id]) for mesh_id, spec in specs.items()}

    def _parts(self, spec: pb.SpawnRequest, told: dict[int, int]) -> MeshParts:
        """Return a mesh of which nodes have told which parts they have."""
        hosts, nodes = spec.world_size // spec.ranks, self.connections
        if spec.name == MAIN_MESH or (hosts == self.facts.nodes and self._is_on_all(spec.mesh_id)):
            return MeshParts(spec, {number: number for number in range(hosts) if number in nodes})
        missing = sorted(set(range(hosts)) - told.keys())
        if len(missing) == len(self.absent):  # else nobody says which of these had a part of it
            told |= dict(zip(missing, sorted(self.absent), strict=True))
        return MeshParts(spec, told, max(0, len(missing) - len(self.absent)))

    def _is_on_all(self, mesh_id: str) -> bool:
        """Whether each node that answers and knows of the newest change has the part of a mesh that is its number's."""
        newest = self.facts.revision
        return all(
            any((one.mesh_id, one.spec.node_rank) == (mesh_id, place) for one in status.meshes)
            for place, (_, status) in self.nodes.items()
            if status.revision == newest
        )

    def places_without(self, mesh_id: str) -> set[int]:
        """Return the places of those nodes that answer and have no part of a mesh."""
        return {
            place for place, (_, status) in self.nodes.items() if all(one.mesh_id != mesh_id for one in status.meshes)
        }

    @property
    def complete(self) -> bool:
        """It can be used, and every node answers."""
        return not self.missing and self.usable

    @property
    def usable(self) -> bool:
        """Its main mesh is there, every node that answers is a whole one, and it is known which others there are."""
        whole = all(status.meshes or status.confirmed for _, status in self.nodes.values())
        return self.main is not None and whole and len(self.nodes) + len(self.absent) == self.facts.nodes

    @property
    def connections(self) -> dict[int, Connection]:
        """To all its nodes, by node rank, whether they answer or not."""
        answering = {rank: connection for rank, (connection, _) in self.nodes.items()}
        return dict(sorted({**answering, **self.absent}.items()))

    @property
    def absence(self) -> str:
        """The names of the nodes that do not answer."""
        return ", ".join(connection.name for _, connection in sorted(self.absent.items()))

    @property
    def is_mine(self) -> bool:
        """Whether we hold it."""
        connection = next(iter(self.nodes.values()))[0]
        return self.facts.owner == current_owner(connection.identity)

    @property
    def missing(self) -> int:
        """How many of its nodes do not answer."""
        return self.facts.nodes - len(self.nodes)
