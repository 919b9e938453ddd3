"""Putting free nodes of the pool in the places of nodes that never come back, with new ranks of the same numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.meshes.core import taken_over
from monarch_nb.client.pools.choosing import Shape, lacking
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.reservations.changing import (
    Change,
    Others,
    Plan,
    free_nodes,
    look,
    look_again,
    taking_turns,
)
from monarch_nb.client.reservations.jobs import Asking, end_jobs_of, end_with_first_job, with_further_nodes
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.times import Duration


@dataclass(frozen=True)
class Replaced:
    """A node that has another's place.

    Attributes:
        number: of the place.
        old, new: what the nodes are called.
        ranks: those of the main mesh that are new.
        beside: those of other meshes: "rank 5 of grown".
        ends_first: what there is to say of a job that ends before the others, or that could not be ended.
    """

    number: int
    old: str
    new: str
    ranks: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()
    ends_first: str = ""

    def __str__(self) -> str:
        line = f"{self.new} has the place of {self.old}"
        if new := [*([name_ranks(self.ranks)] if self.ranks else []), *self.beside]:
            are = "is" if len(new) == 1 and not new[0].startswith("ranks ") else "are"
            line += f": {', '.join(new)} {are} new there, run the cells that define their variables"
        return "\n".join(filter(None, [line, self.ends_first]))


def replace(
    pool: Pool,
    reservation_id: str,
    name: str,
    asked: Sequence[str | int],
    record: FilesRecord,
    asking: Asking,
    say: Progress,
) -> tuple[list[Replaced], HeldReservation]:
    """Put free nodes in the places of some, by default of those that do not answer. See `Reservation.replace`.

    Returns:
        What came of it, and what the reservation's nodes say now.

    Args:
        asked: names or numbers of nodes.
        record: what was said of the reservation's files.
        asking: how it may get nodes that are not free.
    """
    looked = [call(_look(pool, reservation_id, name, asked, ()))]
    held, lost, _ = looked[0]
    facts = held.facts
    shape = Shape(len(lost), facts.procs, facts.gpus)
    before = [held.connections[place] for place in lost]

    async def missing() -> tuple[int, float]:
        looked.clear()  # there will be others
        held, lost, others = await _look(pool, reservation_id, name, asked, ())
        return lacking(
            dataclasses.replace(shape, nodes=len(lost)), [reply.node for _, reply in others]
        ), held.facts.time_left_s

    async def attempt(avoided: Collection[str]) -> tuple[list[Replaced], HeldReservation]:
        held, lost, others = looked.pop() if looked else await _look(pool, reservation_id, name, asked, avoided)
        chosen = dict(zip(lost, await _chosen(pool, held, lost, others), strict=True))
        return await _put_in(pool, held, chosen, record, say)

    def take(wait: bool | Duration) -> tuple[list[Replaced], HeldReservation]:
        return taking_turns(pool, facts, shape, wait, say, attempt)

    replaced, held = with_further_nodes(pool, asking, missing, say, take)
    said = [*end_jobs_of(pool, before, say).failures, end_with_first_job(pool, held)]
    return [*replaced[:-1], dataclasses.replace(replaced[-1], ends_first="\n".join(filter(None, said)))], held


def places_to_fill(names: Mapping[int, str], absent: Collection[int], asked: Sequence[str | int]) -> list[int]:
    """Return the numbers of the nodes that are to be replaced. Pure.

    Args:
        names: of all nodes, by number.
        absent: those that do not answer.
        asked: names or numbers.

    Raises:
        UsageError: there is nothing to replace, no such node, or no node would be left.
    """
    by_word = {str(number): number for number in names} | {called: number for number, called in names.items()}
    there = ", ".join(names[number] for number in sorted(names))
    if unknown := [str(word) for word in asked if str(word) not in by_word]:
        raise UsageError(f"no node {', '.join(unknown)} in this reservation: it has {there}")
    chosen = sorted({by_word[str(word)] for word in asked} if asked else absent)
    if not chosen:
        raise UsageError(f"all nodes answer ({there}): to replace one of them, name it: --node NAME")
    if not names.keys() - chosen - set(absent):
        raise UsageError("no node would be left that knows the reservation: %mesh reserve --replace makes it anew")
    return chosen


def specs_by_place(held: HeldReservation, lost: Sequence[int]) -> dict[int, list[pb.SpawnRequest]]:
    """Return what is to be started in each place: its part of the main mesh, and of others as far as that is known.
    Pure."""
    specs: dict[int, list[pb.SpawnRequest]] = {place: [] for place in lost}
    for mesh in held.meshes.values():
        for number, place in mesh.places.items():
            if place in specs:
                specs[place].append(mesh.part(number))
    return specs


async def _look(
    pool: Pool, reservation_id: str, name: str, asked: Sequence[str | int], avoided: Collection[str]
) -> tuple[HeldReservation, list[int], Others]:
    """Return what is held, which places are to be filled, and the nodes that could, but for those to avoid."""
    held, others = await look(pool, reservation_id, name, avoided)
    names = {place: connection.name for place, connection in held.connections.items()}
    return held, places_to_fill(names, held.absent, asked), others


async def _put_in(
    pool: Pool, held: HeldReservation, chosen: Mapping[int, Connection], record: FilesRecord, say: Progress
) -> tuple[list[Replaced], HeldReservation]:
    """Put nodes in places."""
    before = {place: held.connections[place].name for place in chosen}
    reason = f"{', '.join(before.values())} replaced by {', '.join(node.name for node in chosen.values())}"
    members = {**held.connections, **chosen}
    specs = specs_by_place(held, list(chosen))
    ends = taken_over(", ".join(before.values()), ", ".join(node.name for node in chosen.values()), held.facts.owner)
    await Change(held, Plan(members, chosen, specs, reason, ends=ends), record, say).made()
    replaced = []
    for place, new in chosen.items():
        ranks = [(spec.name, range(spec.first_rank, spec.first_rank + spec.ranks)) for spec in specs[place]]
        of_main = tuple(rank for name, of_mesh in ranks if name == MAIN_MESH for rank in of_mesh)
        beside = tuple(f"{name_ranks(of_mesh)} of {name}" for name, of_mesh in ranks if name != MAIN_MESH)
        replaced.append(Replaced(place, before[place], new.name, of_main, beside))
    return replaced, await look_again(pool, held, chosen)


async def _chosen(pool: Pool, held: HeldReservation, lost: list[int], others: Others) -> list[Connection]:
    gone = [held.connections[place].name for place in lost]
    whose = f"the {'place' if len(gone) == 1 else 'places'} of {', '.join(gone)}"
    ways = f"; add one, or go on without: -t leaves ranks out, %mesh release works without {', '.join(gone)}"
    return await free_nodes(pool, held, len(lost), others, whose, ways)
