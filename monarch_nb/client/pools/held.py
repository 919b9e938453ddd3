"""A reservation, put together from what its nodes answer, and why it can not be had or not be used. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.allocator.state.lease import released
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.project import holds_home
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.config import MAIN_MESH, python_identity
from monarch_nb.errors import ATTACH_USES_IT, MonarchNbError, NodeUnreachable, ReservationConflict, ReservationNotFound
from monarch_nb.ground.account import own_name
from monarch_nb.ground.rank_sets import listed
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.provision.jobs import trouble
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
    """

    spec: pb.SpawnRequest
    places: Mapping[int, int]

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
        if spec.name == MAIN_MESH or spec.grown:  # on the first nodes
            return MeshParts(spec, {number: number for number in range(hosts) if number in nodes})
        missing = sorted(set(range(hosts)) - told.keys())
        if len(missing) == len(self.absent):  # else nobody says which of these have a part of it
            told |= dict(zip(missing, sorted(self.absent), strict=True))
        return MeshParts(spec, told)

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


@dataclass(frozen=True)
class Asked:
    """What somebody says of a reservation when he reserves. What he leaves to defaults is None, and never a conflict:
    another kernel, with another python, is to find it again.

    Attributes:
        environment: None takes the asking process's value; whether this is still the ranks' is not looked at.
        directory: where ranks are to start, absolute. files: the project's root, "" for none.
    """

    shape: Shape
    python: str | None = None
    environment: Mapping[str, str | None] | None = None
    preload: Sequence[str] | None = None
    directory: str | None = None
    files: str | None = None
    shared: str | None = None


def check_same(held: HeldReservation, asked: Asked) -> None:
    """Make sure that a reservation is what is asked for; of one that is not complete only its shape is known.

    Raises:
        ReservationConflict: it is another one; the message says what it is, and names the ways out.
    """
    differences = [] if _has_shape(held, asked.shape) else [f"with {held.shape}"]
    if held.complete:
        differences += _differences(held, asked)
        if len(differences) == 1:
            differences[0] += _way_there(held.shape, asked.shape, held.facts.name)
    if differences:
        raise ReservationConflict(
            f"{held.facts.name!r} is already held {', '.join(differences)}: {ATTACH_USES_IT.format(held.facts.name)}; "
            "--replace releases it first (its ranks and their variables are lost), or choose another name"
        )


def _has_shape(held: HeldReservation, asked: Shape) -> bool:
    """Whether a reservation has a shape, or had it before it grew: its main mesh is as large as then."""
    fewest = held.main.hosts if held.main is not None else held.shape.nodes
    return fewest <= asked.nodes <= held.shape.nodes and replace(asked, nodes=held.shape.nodes) == held.shape


def _way_there(held: Shape, asked: Shape, name: str) -> str:
    """Return what makes a reservation have as many nodes as are asked for, where more are what differs."""
    if held.nodes >= asked.nodes or replace(held, nodes=asked.nodes) != asked:
        return ""
    return f" (%mesh grow {name} --nodes {asked.nodes} changes that)"


def shared_storage(held: HeldReservation) -> str:
    """Return the storage that all nodes of a reservation see, or an empty text."""
    return _main(held).environment.get(config.SHARED_VARIABLE, "")


def _main(held: HeldReservation) -> pb.SpawnRequest:
    return held.main.spec if held.main is not None else pb.SpawnRequest()


def _differences(held: HeldReservation, asked: Asked) -> Iterator[str]:
    spec = _main(held)
    if asked.python and python_identity(asked.python) != python_identity(spec.python):
        yield f"with --python {spec.python}"
    if asked.preload is not None and list(asked.preload) != list(spec.preload):
        yield " ".join(["with", *(f"--preload {name}" for name in spec.preload)]) if spec.preload else "without preload"
    for name, value in (asked.environment or {}).items():  # values may be secrets
        if name not in spec.environment:
            if value is not None or name in os.environ:
                yield f"without --env {name}"
        elif value not in (None, spec.environment[name]):
            yield f"with another --env {name}"
    if asked.directory is not None and (start := start_directory(spec)) not in ("", os.path.normpath(asked.directory)):
        yield f"with ranks that start in {start}"
    in_home = not spec.root and asked.files and holds_home(Path(asked.files))  # never copied whole
    if asked.files not in (None, spec.root) and not in_home:
        yield f"with the files of {spec.root}" if spec.root else "without files"
    if asked.shared and asked.shared != (has := shared_storage(held)):
        yield f"with --shared {has}" if has else "without --shared"


def start_directory(spec: pb.SpawnRequest) -> str:
    """Return where ranks start, on the computer of whoever reserved; an empty text where that is not known."""
    if not spec.in_workspace:
        return os.path.normpath(spec.directory)
    return os.path.normpath(os.path.join(spec.root, spec.directory)) if spec.root else ""


def reserve_line(name: str, shape: Shape, where: str) -> str:
    """Return what is typed to reserve so many ranks.

    Args:
        where: see `where_of`.

    Example:
        >>> reserve_line("dev", Shape(2, 4, 0), "")
        '%mesh reserve dev --nodes 2 --procs 4'
    """
    return f"%mesh reserve {name} {shape.flags} {where}".rstrip()


def raise_if_released(ended: pb.Ended | None) -> None:
    """Raise ReservationReleased, or ReservationExpired, when a reservation has ended."""
    if ended is not None:
        raise released(ended)


def not_found(
    name: str | None,
    held: Sequence[HeldReservation],
    ended: Sequence[pb.Ended] = (),
    pool: str = "",
    elsewhere: str = "",
    silent: Sequence[str] = (),
) -> ReservationNotFound:
    """Return the error that lists what there is, and says why that of this name is gone, or where it is.

    Args:
        pool: where it was looked for, when there are several. elsewhere: in which others it is, in words.
        silent: nodes that were not heard.
    """
    if gone := [one for one in ended if one.name == name]:
        return released(gone[-1])
    mine = [f"{one.facts.name} ({one.shape})" for one in held if one.is_mine]
    what = f"no reservation {name!r}" if name else "nothing to attach to"
    what += f" in the pool {pool}" if pool else ""
    if silent:
        what += f" on the nodes that answer ({listed(silent)} {'does' if len(silent) == 1 else 'do'} not)"
    if elsewhere:
        return ReservationNotFound(f"{what}; {elsewhere}")
    there = f"you hold {', '.join(mine)}" if mine else "you hold none: %mesh reserve NAME --nodes 1 --procs 4"
    return ReservationNotFound(f"{what}; {there}")


def not_whole(held: HeldReservation, pool: str = "") -> MonarchNbError:
    """Return the error that says why a reservation can not be used; given its pool, also why a job lost nodes."""
    name, facts = held.facts.name, held.facts
    if held.missing:
        said = f": {why}" if (why := trouble(pool)) else ""
        who = held.absence or f"{held.missing} of its {facts.nodes} nodes"
        do = "does" if len(held.absent) == 1 else "do"
        ways = f"; %mesh attach {name} uses the others" if held.absent else ""
        if held.meshes and held.main is None:
            anew = f"%mesh reserve {name} {held.shape.flags} --replace"
            ways = f", and {config.MAIN_MESH} had ranks only there: {anew} gives the other nodes back and begins anew"
        return NodeUnreachable(f"{name!r} is held, but {who} {do} not answer{said}{ways}")
    return ReservationNotFound(
        f"{name!r} is not ready: another process is just reserving it, or died half-way (then it is given back within "
        f"{config.PROVISIONAL_LEASE_S:g} s)"
    )
