"""Letting a reservation have more nodes, or fewer.

Meshes stay on the nodes that they are on, with their variables. More nodes come with a new mesh that is over all of
them; or one that is there is over all from then on, and its ranks start anew, when that is said.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.meshes.core import RUN_AGAIN
from monarch_nb.client.pools.facts.choosing import Shape, lacking
from monarch_nb.client.pools.facts.held import HeldReservation, MeshParts
from monarch_nb.client.pools.leasing.beside import checked, stop_beside
from monarch_nb.client.pools.leasing.releasing import KeptFiles
from monarch_nb.client.pools.others import how_to_add
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.nodes.changing import (
    Change,
    Others,
    Plan,
    free_nodes,
    look,
    look_again,
    taking_turns,
)
from monarch_nb.client.reservations.nodes.extending import hold_while_all_last
from monarch_nb.client.reservations.nodes.further import Asking, end_jobs_of, with_further_nodes
from monarch_nb.client.reservations.nodes.without import way_without
from monarch_nb.client.reservations.placing import main_of
from monarch_nb.config import MAIN_MESH, RESTARTED
from monarch_nb.errors import NodeUnreachable, NoSuchMesh, SpawnError, UsageError
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
    check_is_more(name, held.facts.nodes, nodes)
    more = total_of(nodes, held.facts.nodes) - held.facts.nodes
    if wanted_mesh(held, more, into, mesh) is None:
        return Resized(name, held.facts.nodes), held
    shape = Shape(more, held.facts.procs, held.facts.gpus)

    async def missing() -> tuple[int, float]:
        held, others = await look(pool, reservation_id, name)
        _check_all_answer(held, held.absent)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        return lacking(replace(shape, nodes=count), [reply.node for _, reply in others]), held.facts.time_left_s

    async def attempt(avoided: Collection[str]) -> tuple[Resized, HeldReservation]:
        held, others = await look(pool, reservation_id, name, avoided)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        wanted = wanted_mesh(held, count, into, mesh) if count >= 0 else None
        if wanted is None:  # somebody else has done it
            return Resized(name, held.facts.nodes), held
        _check_all_answer(held, held.absent)
        new = await _found(pool, held, count, others) if count else []
        joining = {held.facts.nodes + index: node for index, node in enumerate(new)}
        members = {**held.connections, **joining}
        specs = specs_of(wanted, joining.keys() | held.places_without(wanted.spec.mesh_id), len(members))
        if wanted.places:
            ends = _ends(held, wanted, len(members))
            plan = Plan(members, joining, specs, resized=wanted.spec.mesh_id, ends=ends)
        else:
            plan = Plan(members, joining, specs, makes=wanted.spec.mesh_id)
        made = await _made(pool, held, plan, wanted, record, say)
        if plan.makes:
            await _end_remnants(held, wanted.spec.name)
        return made

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
        stay = [place for place in held.connections if place not in leaving]
        members = {number: held.connections[place] for number, place in enumerate(stay)}
        if smaller is None:
            plan = Plan(members, {}, {})
        else:
            without = held.places_without(smaller.spec.mesh_id)
            specs = specs_of(smaller, [number for number, place in enumerate(stay) if place in without], len(stay))
            ends = _ends(held, smaller, len(stay))
            plan = Plan(members, {}, specs, resized=smaller.spec.mesh_id, ends=ends)
        return await _made(pool, held, plan, smaller, record, say)

    resized, held = call(attempt())
    ended = end_jobs_of(pool, gone, say)
    return replace(resized, ends_first=hold_while_all_last(pool, held, ended)), held


def words(*named: str | int | Sequence[str | int]) -> list[str | int]:
    """Return the names or numbers of nodes, also of one that is no list. Pure."""
    return [word for one in named for word in ([one] if isinstance(one, str | int) else one)]


def total_of(asked: int | str, now: int) -> int:
    """Return how many nodes are asked for: 4, "4", or "+2" and "-1" as seen from those that there are. Pure.

    Raises:
        UsageError: that is no number of nodes, or less than one.
    """
    text = str(asked).strip()
    try:
        total = now + int(text) if text[:1] in ("+", "-") else int(text)
    except ValueError:
        raise UsageError(f"--nodes {asked}: give the number of nodes, as in --nodes 4, or --nodes +2") from None
    if total < 1:
        leaves = f", of {counted(now, 'node')}, leaves none" if text.startswith("-") else ""
        raise UsageError(f"--nodes {asked}{leaves}: a reservation has at least one node (%mesh release gives all back)")
    return total


def check_is_more(name: str, now: int, asked: int | str) -> None:
    """Raise UsageError when a reservation is to grow, and fewer nodes are asked for. Pure."""
    text = str(asked).strip()
    left = now + int(text) if re.fullmatch(r"-\d+", text) else total_of(asked, now)
    if left < now:
        instead = f"%mesh shrink {name} --nodes {left} leaves {left}" if left > 0 else "%mesh release gives all back"
        have = f"{name} has {counted(now, 'node')} already"
        raise UsageError(f"--nodes {asked}: {have}, and grow is for more, as in --nodes +1; {instead}")


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
    if nodes is None and not named:
        raise UsageError("give the number of nodes to keep, --nodes 2, or the nodes to give back, --node NAME")
    if nodes is not None and named:
        raise UsageError(
            f"--nodes {nodes} is the number of nodes to keep, --node {named[0]} a node to give back: use one of them"
        )
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
        raise UsageError("--into NAME starts a mesh anew on all nodes, --mesh NAME makes one: use one of them")
    if into:
        there = _mesh_named(held, into, f"; --mesh {into} makes one")
        is_on_all = _is_just_on(there, held.connections) and not held.places_without(there.spec.mesh_id)
        return there if missing or not is_on_all else None
    over_all = [one for one in held.meshes.values() if _is_just_on(one, held.connections)]
    if not missing and any(mesh in ("", one.spec.name) for one in over_all):
        return None
    name = mesh or GROWN
    if name == MAIN_MESH:
        raise UsageError(
            f"--mesh {name}: {held.facts.name} has that one; --into {name} starts its ranks anew on all nodes, --mesh "
            "with another name makes one beside it"
        )
    checked(name, {})
    for one in held.meshes.values():
        if one.spec.name == name and not one.lost:
            raise UsageError(
                f"{held.facts.name} has {name} already, on {counted(one.hosts, 'node')}: --into {name} starts its "
                f"ranks anew on all nodes, --mesh NAME makes another, %mesh stop {name} ends it"
            )
    spec = pb.SpawnRequest()
    spec.CopyFrom(main_of(held).spec)
    spec.mesh_id, spec.name, spec.grown = uuid.uuid4().hex, name, True
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
    chosen = _mesh_named(held, into) if into else None
    concerned = [mesh for mesh in held.meshes.values() if not set(leaving).isdisjoint(mesh.places.values())]
    goes = ", ".join(held.connections[place].name for place in leaving)
    goes = f"{goes} would be given back ({counted(len(stay), 'node')} left), but"
    others = {mesh.spec.name: mesh for mesh in concerned if mesh != chosen}
    if beside := sorted(others.keys() - {MAIN_MESH}):
        have = "has" if len(beside) == 1 else "have"
        anew = (
            f", --into {beside[0]} starts its ranks anew on all nodes that are left"
            if len(others) == 1 and not chosen
            else ""
        )
        raise UsageError(f"{goes} {', '.join(beside)} {have} ranks there: %mesh stop {beside[0]} ends them{anew}")
    if others:
        main = main_of(held)
        ranks = [rank for rank in range(main.spec.world_size) if rank // main.spec.ranks in leaving]
        are = "is" if len(ranks) == 1 else "are"
        raise UsageError(
            f"{goes} {name_ranks(ranks)} of {MAIN_MESH} {are} there: --into {MAIN_MESH} starts its ranks anew, "
            "on all nodes that are left (their variables are lost)"
        )
    return None if chosen is None or _is_just_on(chosen, stay) else chosen


def _mesh_named(held: HeldReservation, name: str, or_else: str = "") -> MeshParts:
    """Return the newest mesh of a name, or raise NoSuchMesh, which says what else to do."""
    named = [mesh for mesh in held.meshes.values() if mesh.spec.name == name]
    if not named:
        there = ", ".join(dict.fromkeys(mesh.spec.name for mesh in held.meshes.values()))
        raise NoSuchMesh(f"--into {name}: no mesh of {held.facts.name} has this name: it has {there}{or_else}")
    named.sort(key=lambda mesh: not mesh.lost)  # whole ones last
    return named[-1]


def _is_just_on(mesh: MeshParts, places: Collection[int]) -> bool:
    """Whether a mesh is on these nodes and no others, in their order."""
    return not mesh.lost and dict(mesh.places) == dict(enumerate(sorted(places)))


async def _end_remnants(held: HeldReservation, name: str) -> None:
    """End what was left of a mesh of some name when nodes were given back that had parts of it."""
    nodes = [connection for connection, _ in held.nodes.values()]
    for mesh_id, mesh in held.meshes.items():
        if mesh.spec.name == name and mesh.lost:
            await stop_beside(nodes, held.reservation_id, mesh_id)


def _ends(held: HeldReservation, mesh: MeshParts, nodes: int) -> str:
    """Return why what a mesh runs ends."""
    of = f"{mesh.spec.name} of {held.facts.name}"
    return f"{RESTARTED}: {held.facts.owner} let {of} start anew, on {counted(nodes, 'node')}; {RUN_AGAIN}"


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
    now = await look_again(pool, held, plan.joining)
    _check_started(now, plan.resized, resized)
    return resized, now


def _check_started(held: HeldReservation, mesh_id: str, resized: Resized) -> None:
    """Raise SpawnError when a node knows that it is to have ranks of a mesh, and could not start them."""
    lacking = held.places_without(mesh_id) if mesh_id else set()
    names = [held.connections[place].name for place in lacking if held.nodes[place][1].revision == held.revision]
    if names:
        raise SpawnError(
            f"{resized.name} has {counted(resized.nodes, 'node')}, but ranks of {resized.mesh} could not be started on "
            f"{', '.join(names)} (the allocator's log there says why): %mesh grow {resized.name} --nodes "
            f"{resized.nodes} --into {resized.mesh} tries again"
        )


def _check_all_answer(held: HeldReservation, absent: Collection[int]) -> None:
    """Raise NodeUnreachable for nodes on which ranks are to start, and that do not answer."""
    if absent:
        name, names = held.facts.name, ", ".join(held.absent[place].name for place in sorted(absent))
        do, others = ("does", "another in its place") if len(absent) == 1 else ("do", "others in their places")
        raise NodeUnreachable(
            f"{names} {do} not answer, so that no ranks can start there: %mesh replace {name} puts {others}; "
            f"{way_without(held, absent)} goes on without"
        )


async def _found(pool: Pool, held: HeldReservation, count: int, others: Others) -> list[Connection]:
    """Return free nodes, or raise CapacityError."""
    total = held.facts.nodes + count
    what_for = f"{held.facts.name} to have {counted(total, 'node')}"
    return await free_nodes(pool, held, count, others, what_for, how_to_add(pool.name, total))
