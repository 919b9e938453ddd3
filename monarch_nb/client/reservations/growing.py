"""Letting a reservation have more nodes, or fewer.

Meshes stay on the nodes that they are on, with their variables. More nodes come with a new mesh that is over all of
them; or one that was over all is so again, and its ranks start anew, when that is said.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.pools.beside import checked
from monarch_nb.client.pools.choosing import Shape, lacking
from monarch_nb.client.pools.held import HeldReservation, MeshParts
from monarch_nb.client.pools.others import how_to_add
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.pools.releasing import KeptFiles
from monarch_nb.client.reservations.changing import Change, Others, Plan, free_nodes, look, look_again, taking_turns
from monarch_nb.client.reservations.extending import hold_while_all_last
from monarch_nb.client.reservations.further import Asking, end_jobs_of, with_further_nodes
from monarch_nb.client.reservations.placing import main_of
from monarch_nb.client.reservations.without import way_without
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import CapacityError, NodeUnreachable, NoSuchMesh, UsageError
from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.spreading import spread
from monarch_nb.times import Duration

GROWN = "grown"
"""What the mesh over all nodes is called that comes with more of them."""


@dataclass(frozen=True)
class Resized:
    """What became of a reservation that was to have more nodes, or fewer; as text what there is to say of it.

    Attributes:
        name: of the reservation.
        nodes: how many it has now.
        joined, left: the names of those that are new, and of those that were given back.
        mesh: the name of the mesh whose ranks are new; "" when none are.
        ranks: how many it has now.
        is_new_mesh: it was not there before.
        kept: what ranks wrote on nodes that were given back, and where it is.
        ends_first: what there is to say of a job that ends before the others, or that could not be ended.
    """

    name: str
    nodes: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    mesh: str = ""
    ranks: int = 0
    is_new_mesh: bool = False
    kept: tuple[KeptFiles, ...] = ()
    ends_first: str = ""

    def __str__(self) -> str:
        line = f"{self.name} has {counted(self.nodes, 'node')}"
        if names := self.joined or self.left:
            verb = "new" if self.joined else "given back"
            line = f"{line}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} {verb}"
        elif not self.mesh:
            line = f"{line} already"
        return "\n".join([line, *self._of_mesh(), *map(str, self.kept), *filter(None, [self.ends_first])])

    def _of_mesh(self) -> list[str]:
        ranks = counted(self.ranks, "rank")
        if self.is_new_mesh:
            runs = f"%%mesh{mesh_flag(self.mesh)} runs a cell there"
            return [f"{self.mesh} has {ranks} on all of them: {runs}; {MAIN_MESH} stays as it is"]
        return [f"{self.mesh} has {ranks}, all new: run the cells that define their variables"] if self.mesh else []


def grow(
    pool: Pool,
    reservation_id: str,
    name: str,
    nodes: int | str,
    into: str,
    mesh: str,
    record: FilesRecord,
    asking: Asking,
    say: Progress,
) -> tuple[Resized, HeldReservation]:
    """Let a reservation have more nodes. See `Reservation.grow`.

    Returns:
        What came of it, and what the reservation's nodes say now.

    Args:
        nodes: how many there are to be, or "+2".
        into: the mesh that is to be over all of them; "": a new one.
        mesh: what that is called; "" when it was not said.
        record: what was said of the reservation's files.
        asking: how it may get nodes that are not free.
    """
    held, _ = call(look(pool, reservation_id, name))
    more = total_of(nodes, held.facts.nodes) - held.facts.nodes
    if more < 0:
        raise UsageError(f"{name} has {counted(held.facts.nodes, 'node')}: {_shrinking(held, nodes)}")
    if wanted_mesh(held, more, into, mesh) is None:
        return Resized(name, held.facts.nodes), held
    shape = Shape(more, held.facts.procs, held.facts.gpus)

    async def missing() -> tuple[int, float]:
        held, others = await look(pool, reservation_id, name)
        _check_all_answer(held, held.absent)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        return lacking(replace(shape, nodes=count), [reply.node for _, reply in others]), held.facts.time_left_s

    async def attempt() -> tuple[Resized, HeldReservation]:
        held, others = await look(pool, reservation_id, name)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        wanted = wanted_mesh(held, count, into, mesh) if count >= 0 else None
        if wanted is None:  # somebody else has done it
            return Resized(name, held.facts.nodes), held
        _check_all_answer(held, held.absent)
        new = _found(pool, held, count, others) if count else []
        joining = {held.facts.nodes + index: node for index, node in enumerate(new)}
        members = {**held.connections, **joining}
        specs = specs_of(wanted, joining if wanted.places else members, len(members))
        if wanted.places:
            plan = Plan(members, joining, specs, resized=wanted.spec.mesh_id)
        else:
            plan = Plan(members, joining, specs, makes=wanted.spec.mesh_id)
        return await _made(pool, held, plan, wanted, record, say)

    def take(wait: bool | Duration) -> tuple[Resized, HeldReservation]:
        return taking_turns(pool, name, shape, wait, say, attempt)

    resized, held = with_further_nodes(pool, asking, missing, say, take)
    return replace(resized, ends_first=hold_while_all_last(pool, held)), held


def shrink(
    pool: Pool,
    reservation_id: str,
    name: str,
    nodes: int | str | None,
    named: Sequence[str | int],
    into: str,
    record: FilesRecord,
    say: Progress,
) -> tuple[Resized, HeldReservation]:
    """Let a reservation have fewer nodes. See `Reservation.shrink`.

    Returns:
        What came of it, and what the reservation's nodes say now.

    Args:
        nodes: how many there are to be, or "-2"; None: all but those that are named.
        named: names or numbers of nodes to give back.
        into: the mesh that is to be over those that are left.
        record: what was said of the reservation's files.
    """
    gone: list[Connection] = []

    async def attempt() -> tuple[Resized, HeldReservation]:
        held, _ = await look(pool, reservation_id, name)
        leaving = places_to_leave(
            {place: connection.name for place, connection in held.connections.items()}, held.absent, nodes, named
        )
        if not leaving:
            return Resized(name, held.facts.nodes), held
        smaller = mesh_to_shrink(held, leaving, into)
        gone.extend(held.connections[place] for place in leaving)
        if smaller is not None:
            _check_all_answer(held, held.absent.keys() - set(leaving))
        stay = [connection for place, connection in held.connections.items() if place not in leaving]
        plan = Plan(dict(enumerate(stay)), {}, {}, resized=smaller.spec.mesh_id if smaller else "")
        return await _made(pool, held, plan, smaller, record, say)

    resized, held = call(attempt())
    ended = end_jobs_of(pool, gone, say)
    return replace(resized, ends_first=hold_while_all_last(pool, held, ended)), held


def total_of(asked: int | str, now: int) -> int:
    """Return how many nodes are asked for: 4, "4", or "+2" and "-1" as seen from those that there are. Pure.

    Raises:
        UsageError: that is no number of nodes, or less than one.
    """
    text = str(asked).strip()
    try:
        total = now + int(text) if text[:1] in ("+", "-") else int(text)
    except ValueError:
        raise UsageError(f"--nodes {asked}: say how many there are to be, as in --nodes 4, or --nodes +2") from None
    if total < 1:
        raise UsageError(f"--nodes {asked}: a reservation has at least one node (%mesh release gives all back)")
    return total


def places_to_leave(
    names: Mapping[int, str], absent: Collection[int], nodes: int | str | None, named: Sequence[str | int]
) -> list[int]:
    """Return the numbers of the nodes that are to be given back: those that are named, else first those that do not
    answer, then the last ones. Pure.

    Args:
        names: of all nodes, by number. absent: those that do not answer.
        nodes: how many are to be left. named: names or numbers.

    Raises:
        UsageError: that makes no sense, or no node would be left.
    """
    if (nodes is None) == (not named):
        raise UsageError("say how many nodes are to be left, --nodes 2, or which are to go, --node NAME")
    if nodes is not None:
        count = len(names) - total_of(nodes, len(names))
        if count < 0:
            raise UsageError(
                f"there are {counted(len(names), 'node')}: %mesh grow --nodes {nodes} is for more, this is for fewer"
            )
        last_first = sorted(names, key=lambda place: (place not in absent, -place))
        return sorted(last_first[:count])
    by_word = {str(number): number for number in names} | {called: number for number, called in names.items()}
    there = ", ".join(names[number] for number in sorted(names))
    if unknown := [str(word) for word in named if str(word) not in by_word]:
        raise UsageError(f"no node {', '.join(unknown)} in this reservation: it has {there}")
    leaving = sorted({by_word[str(word)] for word in named})
    if len(leaving) == len(names):
        raise UsageError(f"no node would be left of {there}: %mesh release gives all back")
    return leaving


def wanted_mesh(held: HeldReservation, missing: int, into: str, mesh: str) -> MeshParts | None:
    """Return the mesh that is to be over all nodes, one without places if it is a new one; None when nothing is to be
    done. Pure.

    Args:
        missing: how many nodes are to come.
        into: the name of one that is there. mesh: what a new one is called; "" when that was not said.

    Raises:
        UsageError: it can not be over all, or one of that name is there.
        NoSuchMesh: none is called as `into` says.
    """
    if into and mesh:
        raise UsageError("--into NAME starts a mesh anew on all nodes, --mesh NAME makes one: say one of them")
    nodes = held.facts.nodes
    if into:
        there = _mesh_on(held, into, held.connections)
        return there if missing else None
    if not missing and any(one.hosts == nodes and mesh in ("", one.spec.name) for one in held.meshes.values()):
        return None
    name = mesh or GROWN
    checked(name, {})
    for one in held.meshes.values():
        if one.spec.name == name:
            others = f"--mesh NAME makes another, %mesh stop {name} ends it"
            anew = f"--into {name} starts its ranks anew on all nodes, " if one.hosts == nodes else ""
            raise UsageError(f"{held.facts.name} has {name} already, on {counted(one.hosts, 'node')}: {anew}{others}")
    spec = pb.SpawnRequest()
    spec.CopyFrom(main_of(held).spec)
    spec.mesh_id, spec.name = uuid.uuid4().hex, name
    return MeshParts(spec, {})


def specs_of(mesh: MeshParts, places: Collection[int], nodes: int) -> dict[int, list[pb.SpawnRequest]]:
    """Return what is to be started in some places of a mesh that is over so many nodes then. Pure."""
    specs = {place: mesh.part(place) for place in places}
    for spec in specs.values():
        spread(spec, nodes)
    return {place: [spec] for place, spec in specs.items()}


def mesh_to_shrink(held: HeldReservation, leaving: Collection[int], into: str) -> MeshParts | None:
    """Return the mesh whose ranks start anew when some nodes go; None when none has any there. Pure.

    Raises:
        UsageError: a mesh has ranks there, and it was not said that these may go.
        NoSuchMesh: none is called as `into` says.
    """
    stay = held.connections.keys() - set(leaving)
    chosen = _mesh_on(held, into, stay) if into else None
    concerned = [mesh for mesh in held.meshes.values() if not set(leaving).isdisjoint(mesh.places.values())]
    where = ", ".join(held.connections[place].name for place in leaving)
    others = {mesh.spec.name: mesh for mesh in concerned if mesh != chosen}
    if beside := sorted(others.keys() - {MAIN_MESH}):
        have = "has" if len(beside) == 1 else "have"
        may_be_smaller = len(others) == 1 and stay <= set(others[beside[0]].places.values())
        anew = f", --into {beside[0]} starts its ranks anew on all nodes that are left" if may_be_smaller else ""
        raise UsageError(f"{', '.join(beside)} {have} ranks on {where}: %mesh stop {beside[0]} ends them{anew}")
    if others:
        main = main_of(held)
        ranks = [rank for rank in range(main.spec.world_size) if rank // main.spec.ranks in leaving]
        are = "is" if len(ranks) == 1 else "are"
        raise UsageError(
            f"{name_ranks(ranks)} of {MAIN_MESH} {are} on {where}; --into {MAIN_MESH} starts the ranks of {MAIN_MESH} "
            "anew, on all nodes that are left (their variables are lost)"
        )
    return chosen if chosen in concerned else None


def _mesh_on(held: HeldReservation, name: str, places: Collection[int]) -> MeshParts:
    """Return the mesh of a name, which is on all these nodes."""
    named = [mesh for mesh in held.meshes.values() if mesh.spec.name == name]
    if not named:
        there = ", ".join(dict.fromkeys(mesh.spec.name for mesh in held.meshes.values()))
        raise NoSuchMesh(f"--into {name}: no mesh of {held.facts.name} is called so: it has {there}")
    mesh = named[-1]
    if not set(places) <= set(mesh.places.values()):
        raise UsageError(
            f"--into {name}: {name} is on {mesh.hosts} of the {counted(held.facts.nodes, 'node')} of "
            f"{held.facts.name}, and only one that is on all can be over more or fewer: {_shrinking(held, mesh.hosts)} "
            "gives the others back"
        )
    return mesh


def _shrinking(held: HeldReservation, nodes: int | str) -> str:
    into = f" --into {MAIN_MESH}" if main_of(held).hosts == held.facts.nodes else ""
    return f"%mesh shrink {held.facts.name} --nodes {nodes}{into}"


async def _made(
    pool: Pool, held: HeldReservation, plan: Plan, mesh: MeshParts | None, record: FilesRecord, say: Progress
) -> tuple[Resized, HeldReservation]:
    before, nodes = held.connections.values(), len(plan.members)
    if mesh is not None and plan.resized:
        say(f"the ranks of {mesh.spec.name} start anew on {counted(nodes, 'node')}: their variables are lost")
    kept = await Change(held, plan, record, say).made()
    resized = Resized(
        held.facts.name,
        nodes,
        tuple(node.name for node in plan.joining.values()),
        tuple(node.name for node in before if node not in plan.members.values()),
        mesh.spec.name if mesh else "",
        nodes * mesh.spec.ranks if mesh else 0,
        bool(plan.makes),
        tuple(kept),
    )
    return resized, await look_again(pool, held, plan.joining)


def _check_all_answer(held: HeldReservation, absent: Collection[int]) -> None:
    """Raise NodeUnreachable for nodes on which ranks are to start, and that do not answer."""
    if absent:
        name, names = held.facts.name, ", ".join(held.absent[place].name for place in sorted(absent))
        do, others = ("does", "another in its place") if len(absent) == 1 else ("do", "others in their places")
        raise NodeUnreachable(
            f"{names} {do} not answer, so that no ranks can start there: %mesh replace {name} puts {others}; "
            f"{way_without(held, absent)} goes on without"
        )


def _found(pool: Pool, held: HeldReservation, count: int, others: Others) -> list[Connection]:
    """Return free nodes, or raise CapacityError."""
    name, total = held.facts.name, held.facts.nodes + count
    what_for = f"{name} to have {counted(total, 'node')}"
    if not others:
        raise CapacityError(
            f"no free node for {what_for}: the pool {pool.name!r} has no other that answers"
            f"{how_to_add(pool.name, total)}"
        )
    return free_nodes(pool, held, count, others, what_for)
