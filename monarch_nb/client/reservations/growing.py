"""Letting a reservation have more nodes, or fewer.

Meshes stay on the nodes that they are on, with their variables. More nodes come with a new mesh that is over all of
them. Nodes on which a mesh has ranks are not given back.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.pools.choosing import Shape, lacking
from monarch_nb.client.pools.held import HeldReservation, MeshParts
from monarch_nb.client.pools.leasing import KeptFiles, checked
from monarch_nb.client.pools.others import how_to_add
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.changing import (
    Change,
    Others,
    Plan,
    free_nodes,
    look,
    look_again,
    main_of,
    taking_turns,
)
from monarch_nb.client.reservations.jobs import Asking, end_jobs_of, end_with_first_job, with_further_nodes
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import NodeUnreachable, UsageError
from monarch_nb.ground.code_names import mesh_flag
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
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
        mesh: the name of the mesh that is new; "" when none is.
        ranks: how many it has.
        kept: what ranks wrote on nodes that were given back, and where it is.
        ends_first: what there is to say of a job that ends before the others, or that could not be ended.
    """

    name: str
    nodes: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    mesh: str = ""
    ranks: int = 0
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
        if not self.mesh:
            return []
        runs = f"%%mesh{mesh_flag(self.mesh)} runs a cell there"
        return [f"{self.mesh} has {counted(self.ranks, 'rank')} on all of them: {runs}; {MAIN_MESH} stays as it is"]


def grow(
    pool: Pool,
    reservation_id: str,
    name: str,
    nodes: int | str,
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
        mesh: what the mesh over all of them is called; "" when it was not said.
        record: what was said of the reservation's files.
        asking: how it may get nodes that are not free.
    """
    held, _ = call(look(pool, reservation_id, name))
    facts = held.facts
    check_is_more(name, held.facts.nodes, nodes)
    more = total_of(nodes, held.facts.nodes) - held.facts.nodes
    if wanted_mesh(held, more, mesh) is None:
        return Resized(name, held.facts.nodes), held
    shape = Shape(more, facts.procs, facts.gpus)

    async def missing() -> tuple[int, float]:
        held, others = await look(pool, reservation_id, name)
        _check_all_answer(held)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        return lacking(replace(shape, nodes=count), [reply.node for _, reply in others]), held.facts.time_left_s

    async def attempt(avoided: Collection[str]) -> tuple[Resized, HeldReservation]:
        held, others = await look(pool, reservation_id, name, avoided)
        count = total_of(nodes, held.facts.nodes) - held.facts.nodes
        wanted = wanted_mesh(held, count, mesh) if count >= 0 else None
        if wanted is None:  # somebody else has done it
            return Resized(name, held.facts.nodes), held
        _check_all_answer(held)
        new = await _found(pool, held, count, others) if count else []
        joining = {held.facts.nodes + index: node for index, node in enumerate(new)}
        members = {**held.connections, **joining}
        specs = {place: [wanted.part(place)] for place in members}
        plan = Plan(members, joining, specs, makes=wanted.spec.mesh_id)
        return await _made(pool, held, plan, wanted.spec, record, say)

    def take(wait: bool | Duration) -> tuple[Resized, HeldReservation]:
        return taking_turns(pool, facts, shape, wait, say, attempt)

    resized, held = with_further_nodes(pool, asking, missing, say, take)
    said = [*end_jobs_of(pool, (), say).failures, end_with_first_job(pool, held)]
    return replace(resized, ends_first="\n".join(filter(None, said))), held


def shrink(
    pool: Pool,
    reservation_id: str,
    name: str,
    nodes: int | str | None,
    named: Sequence[str | int],
    record: FilesRecord,
    say: Progress,
) -> tuple[Resized, HeldReservation]:
    """Let a reservation have fewer nodes. See `Reservation.shrink`.

    Returns:
        What came of it, and what the reservation's nodes say now.

    Args:
        nodes: how many there are to be, or "-2"; None: all but those that are named.
        named: names or numbers of nodes to give back.
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
        check_without_ranks(held, leaving)
        gone.extend(held.connections[place] for place in leaving)
        stay = [place for place in held.connections if place not in leaving]
        members = {number: held.connections[place] for number, place in enumerate(stay)}
        return await _made(pool, held, Plan(members, {}, {}), None, record, say)

    resized, held = call(attempt())
    return replace(resized, ends_first="\n".join(end_jobs_of(pool, gone, say).failures)), held


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


def wanted_mesh(held: HeldReservation, missing: int, mesh: str) -> MeshParts | None:
    """Return the mesh that is to be made, over all nodes; None when nothing is to be done. Pure.

    Args:
        missing: how many nodes are to come.
        mesh: what it is called; "" when that was not said.

    Raises:
        UsageError: one of that name is there.
    """
    over_all = [one for one in held.meshes.values() if set(one.places.values()) == held.connections.keys()]
    if not missing and any(mesh in ("", one.spec.name) for one in over_all):
        return None
    name = mesh or GROWN
    checked(name, {})
    for one in held.meshes.values():
        if one.spec.name == name:
            raise UsageError(
                f"{held.facts.name} has {name} already, on {counted(one.hosts, 'node')}: --mesh NAME makes another, "
                f"%mesh stop {name} ends it"
            )
    spec, nodes = pb.SpawnRequest(), held.facts.nodes + missing
    spec.CopyFrom(main_of(held).spec)
    spec.mesh_id, spec.name, spec.grown, spec.world_size = uuid.uuid4().hex, name, True, nodes * spec.ranks
    for axis in spec.extent:
        if axis.name == "hosts":
            axis.size = nodes
    return MeshParts(spec, {})


def check_without_ranks(held: HeldReservation, leaving: Collection[int]) -> None:
    """Raise UsageError when a mesh has ranks on nodes that are to be given back, or may have. Pure."""
    unheard = not held.absent.keys().isdisjoint(leaving)
    there = [
        mesh.spec.name
        for mesh in held.meshes.values()
        if not set(leaving).isdisjoint(mesh.places.values()) or (unheard and len(mesh.places) < mesh.hosts)
    ]
    if not there:
        return
    goes = ", ".join(held.connections[place].name for place in leaving)
    have = "has" if len(there) == 1 else "have"
    if MAIN_MESH in there:
        left = len(held.connections) - len(leaving)
        way = f"{MAIN_MESH} stays on its nodes, %mesh reserve {held.facts.name} --nodes {left} --replace begins anew"
    else:
        way = f"{' and '.join(f'%mesh stop {name}' for name in there)} {'ends' if len(there) == 1 else 'end'} them"
    raise UsageError(f"{goes} would be given back, but {', '.join(there)} {have} ranks there: {way}")


async def _made(
    pool: Pool, held: HeldReservation, plan: Plan, mesh: pb.SpawnRequest | None, record: FilesRecord, say: Progress
) -> tuple[Resized, HeldReservation]:
    before, nodes = held.connections.values(), len(plan.members)
    kept = await Change(held, plan, record, say).made()
    resized = Resized(
        held.facts.name,
        nodes,
        tuple(node.name for node in plan.joining.values()),
        tuple(node.name for node in before if node not in plan.members.values()),
        mesh.name if mesh else "",
        mesh.world_size if mesh else 0,
        tuple(kept),
    )
    return resized, await look_again(pool, held, plan.joining)


def _check_all_answer(held: HeldReservation) -> None:
    """Raise NodeUnreachable for nodes on which ranks are to start, and that do not answer."""
    if held.absent:
        do, others = ("does", "another in its place") if len(held.absent) == 1 else ("do", "others in their places")
        raise NodeUnreachable(
            f"{held.absence} {do} not answer, so that no ranks can start there: %mesh replace {held.facts.name} puts "
            f"{others}"
        )


async def _found(pool: Pool, held: HeldReservation, count: int, others: Others) -> list[Connection]:
    """Return free nodes, or raise CapacityError."""
    total = held.facts.nodes + count
    what_for = f"{held.facts.name} to have {counted(total, 'node')}"
    return await free_nodes(pool, held, count, others, what_for, how_to_add(pool.name, total))
