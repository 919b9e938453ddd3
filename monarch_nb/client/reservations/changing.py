"""Other nodes for a reservation: taken, told to all, undone when a part fails; and what they have of its files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from monarch_nb import config
from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S, Connection
from monarch_nb.client.files.evidence import check_shared, nodes_seeing
from monarch_nb.client.files.record import FilesRecord
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.pools.answering import Step, check_ways
from monarch_nb.client.pools.choosing import Shape, choose_nodes, lacking
from monarch_nb.client.pools.held import HeldReservation, MeshParts, not_whole
from monarch_nb.client.pools.infos import RIGHTS
from monarch_nb.client.pools.leasing import Attempt, KeptFiles, making, stop_beside, tried
from monarch_nb.client.pools.pool import Pool, Progress, all_of, lease
from monarch_nb.client.reservations.taking import in_line, with_room
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import AccessDenied, CapacityError, MonarchNbError, NodeUnreachable
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.times import Duration, seconds_of


def synced_files(held: HeldReservation) -> SyncedFiles:
    """Return the files of a reservation, as this process keeps them up to date."""
    said = held.nodes[0][1].files if 0 in held.nodes else files_pb2.ReservationFiles()
    if held.facts.right in RIGHTS:
        nodes = held.connections
        return SyncedFiles.get(held.reservation_id, {}, nodes, root="", reload=False, said=said, others=True)
    spec = main_of(held).spec
    copied = copied_nodes(held)
    copies = {node: connection for node, connection in held.connections.items() if node in copied}
    seeing = {node: connection for node, connection in held.connections.items() if node not in copied}
    return SyncedFiles.get(held.reservation_id, copies, seeing, root=spec.root, reload=spec.reload, said=said)


def copied_nodes(held: HeldReservation) -> set[int]:
    """Return the nodes that have copies; those that do not answer are thought to be like the others."""
    if held.facts.right in RIGHTS:  # somebody else's: nothing is synced from here
        return set()
    copied = {node for node, spec in specs_like_main(held).items() if spec.in_workspace}
    return copied | held.absent.keys() if copied else set()


def main_of(held: HeldReservation) -> MeshParts:
    """Return the main mesh of a reservation that can be used."""
    main = held.main
    assert main is not None, f"no node knows the main mesh of {held.facts.name}"
    return main


def specs_like_main(held: HeldReservation) -> dict[int, pb.SpawnRequest]:
    """Return what ranks of the main mesh are started with on each node that answers, by node rank. On a node without
    any it would be the same, where other ranks are there in the directory of these."""
    main, specs = main_of(held).spec, {}
    for node, (_, status) in held.nodes.items():
        here = {mesh.name: mesh.spec for mesh in status.meshes}
        spec = here.get(MAIN_MESH)
        if spec is None:
            spec = pb.SpawnRequest()
            spec.CopyFrom(main)
            for other in here.values():
                spec.directory, spec.in_workspace = other.directory, other.in_workspace
        specs[node] = spec
    return specs


T = TypeVar("T")
Others = list[tuple[Connection, pb.StatusReply]]
"""The nodes of a pool that have no part of a reservation."""


@dataclass(frozen=True)
class Plan:
    """What a reservation is to become.

    Attributes:
        members: all its nodes from then on, by number.
        joining: those that have no part of it yet.
        specs: what is started, by the numbers of nodes.
        reason: why ranks that stay lose their process groups; "": they keep them.
        makes: the id of a mesh that is new, on all of `members`; "" for none.
        ends: why what runs on ranks that go ends, for people.
    """

    members: Mapping[int, Connection]
    joining: Mapping[int, Connection]
    specs: Mapping[int, Sequence[pb.SpawnRequest]]
    reason: str = ""
    makes: str = ""
    ends: str = ""


def taking_turns(
    pool: Pool,
    facts: pb.ReservationStatus,
    shape: Shape,
    wait: bool | Duration,
    say: Progress,
    attempt: Attempt[T],
) -> T:
    """Return what an attempt to have more of a pool returns: tried again when others were faster, without nodes that
    the rest does not reach and, if that is wanted, when others release what they hold.

    Args:
        facts: of the reservation that is to have it.
        shape: of what is needed.
        wait: for what others hold, and how long.
        attempt: runs on the background loop.
    """
    longest_s = None if isinstance(wait, bool) else seconds_of(wait, "wait")
    but = facts.name, facts.owner

    def take() -> T:
        return call(tried(attempt, say))

    if wait is False:
        return with_room(pool, shape, say, take, but)
    return in_line(pool, facts.name, shape, longest_s, say, take, but)


async def look(
    pool: Pool, reservation_id: str, name: str, avoided: Collection[str] = ()
) -> tuple[HeldReservation, Others]:
    """Return what is held, and the nodes that have no part of it, but for those to avoid.

    Raises:
        AccessDenied: it is somebody else's.
    """
    told = await pool.ask()
    members = await pool.told_by_members(told, pb.StatusRequest())
    found = [held for held in pool.put_together([*told, *members]) if held.reservation_id == reservation_id]
    held = found[0] if found else await pool.held(reservation_id, name)
    if not held.usable:
        raise await asyncio.to_thread(not_whole, held, pool.name)
    if held.facts.right != pb.RIGHT_OWN:
        owner, called = held.facts.owner, held.facts.name
        raise AccessDenied(f"{called} is {owner}'s: only {owner} can change which nodes it has", owner, called)
    others = [
        (connection, reply)
        for connection, reply in told
        if connection.name not in avoided
        and all(status.reservation_id != reservation_id for status in reply.reservations)
    ]
    return held, others


async def look_again(pool: Pool, before: HeldReservation, joined: Mapping[int, Connection]) -> HeldReservation:
    """Return what a reservation's nodes say, without asking those that are gone."""
    nodes = {*before.connections.values(), *joined.values()}
    told = await answers({node: node.unary("Status", pb.StatusRequest()) for node in nodes})
    said = [(node, reply) for node, reply in told.items() if isinstance(reply, pb.StatusReply)]
    return next(held for held in pool.put_together(said) if held.reservation_id == before.reservation_id)


async def free_nodes(
    pool: Pool, held: HeldReservation, count: int, others: Others, what_for: str, ways: str
) -> list[Connection]:
    """Return nodes that have room for their part of a reservation.

    Args:
        what_for: as in "no free node for the place of host2".
        ways: what there is to say when the pool has no other node.

    Raises:
        CapacityError: there are too few.
    """
    shape = Shape(count, held.facts.procs, held.facts.gpus)
    nodes = [reply.node for _, reply in others]
    gone = [node.name for node in held.absent.values()]
    silent = await pool.why_silent(but=gone) if lacking(shape, nodes) else {}
    if not others:
        whys = ", ".join(f"{one}: {why}" for one, why in silent.items())
        no_other = f"the pool {pool.name!r} has no other that answers{f' ({whys})' if whys else ''}"
        raise CapacityError(f"no free node for {what_for}: {no_other}{ways}")
    try:
        indices = choose_nodes(shape, nodes, silent=silent, own_pid=os.getpid(), besides=held.facts.nodes)
    except CapacityError as error:
        raise CapacityError(f"no free node for {what_for}: {error}", waiting_helps=error.waiting_helps) from None
    return [others[index][0] for index in indices]


def kept_on(connection: Connection, kept: pb.KeptFiles) -> KeptFiles:
    """Return what a node kept that has no place any more."""
    return KeptFiles(connection.name, kept.directory, kept.files, kept.size_bytes)


class Change:
    """One attempt to let a reservation have other nodes. Everything here runs on the background loop.

    Args:
        record: what was said of the reservation's files.
    """

    def __init__(self, held: HeldReservation, plan: Plan, record: FilesRecord, say: Progress) -> None:
        self._held, self._plan, self._record, self._say = held, plan, record, say
        stay = set(plan.members.values())
        answering = [connection for _, (connection, _) in sorted(held.nodes.items())]
        self._stay = [connection for connection in answering if connection in stay]
        self._leave = [connection for connection in answering if connection not in stay]
        self._lease_id = uuid.uuid4().hex
        self._stores: dict[str, pb.StorePlace] = {}
        self._keepers: dict[str, Connection] = {}
        """Of those stores that were there before: a node that stays, and has a part of the mesh then."""

    async def made(self) -> list[KeptFiles]:
        """Make it so; return what ranks wrote on nodes that have no place any more, and where it is kept.

        Raises:
            Outrun: somebody else has leased what was free.
            MonarchNbError: it did not work; nothing has changed.
        """
        joining = self._plan.joining.values()
        for connection in joining:
            connection.hold_session()  # when it breaks off, the nodes take what is half-made back
        try:
            async with self._making():
                await self._prepare()
                return await self._settle()
        finally:
            for connection in joining:
                connection.let_go()

    def _making(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Have a mesh that is new ended on all nodes, should this process die before it is whole."""
        if not self._plan.makes:
            return contextlib.nullcontext()
        return making([*self._stay, *self._plan.joining.values()], self._held.reservation_id, mesh_id=self._plan.makes)

    async def _prepare(self) -> None:
        """Lease slots on the nodes that join, and start ranks."""
        try:
            await self._find_stores()
            if self._plan.joining:
                await self._lease()
            if self._plan.specs:
                await self._host_stores()
                await self._start()
        except BaseException:
            await asyncio.shield(self._give_back())
            raise

    async def _lease(self) -> None:
        facts = self._held.facts
        requests = {
            connection: pb.ReserveRequest(
                reservation_id=facts.reservation_id,
                name=facts.name,
                owner=facts.owner,
                procs=facts.procs,
                gpus=facts.gpus,
                node_rank=place,
                nodes=len(self._plan.members),
                notebook=facts.notebook,
                created_at=facts.created_at,
                time_s=facts.time_s,
                idle_s=facts.idle_s,
                client_id=connection.client_id,
                lease_id=self._lease_id,
                where=facts.where,
            )
            for place, connection in self._plan.joining.items()
        }
        with Step(f"leasing {Shape(len(requests), facts.procs, facts.gpus)}", self._say) as step:
            await lease(requests, step)

    async def _start(self) -> None:
        """Start ranks."""
        joining, specs = list(self._plan.joining.values()), self._plan.specs
        main = main_of(self._held).spec
        await check_ways(joining, self._stay)
        if shared := main.environment.get(config.SHARED_VARIABLE, ""):
            await check_shared([self._stay[0], *joining], shared)
        self._say(f"starting {counted(sum(spec.ranks for parts in specs.values() for spec in parts), 'rank')}")
        await self._say_directories()
        for parts in specs.values():
            for spec in parts:
                self._fit(spec)
        await all_of(self._spawn(self._plan.members[place], parts) for place, parts in specs.items())

    async def _say_directories(self) -> None:
        """Say where ranks start: where those do that are there, else in the directory of the main mesh if the node sees
        it, else in a copy."""
        main, there = main_of(self._held).spec, specs_like_main(self._held)
        directory = os.path.join(main.root, main.directory)  # an absolute one is itself
        like = {self._held.nodes[place][0]: spec for place, spec in there.items() if self._held.nodes[place][1].meshes}
        nodes = {place: self._plan.members[place] for place in self._plan.specs}
        empty = {place: node for place, node in nodes.items() if node not in like}
        sees = dict(zip(empty, await nodes_seeing(list(empty.values()), directory), strict=True))
        for place, parts in self._plan.specs.items():
            for spec in parts:
                if place in sees:
                    _place_in(spec, directory, sees=sees[place])
                else:
                    of_node = like[nodes[place]]
                    spec.directory, spec.in_workspace = of_node.directory, of_node.in_workspace

    async def _find_stores(self) -> None:
        """Ask where the stores of meshes are that are to be on other nodes than now, and on some that stay."""
        for mesh_id in {spec.mesh_id for parts in self._plan.specs.values() for spec in parts}:
            having = [
                connection
                for connection, status in self._held.nodes.values()
                if connection in self._stay and any(mesh.mesh_id == mesh_id for mesh in status.meshes)
            ]
            if having:
                find = pb.FindStoreRequest(mesh_id=mesh_id, only_look=True, reservation_id=self._held.reservation_id)
                self._stores[mesh_id] = await having[0].unary("FindStore", find)
                self._keepers[mesh_id] = having[0]

    async def _host_stores(self) -> None:
        """Host the stores of all other meshes: of a new one, and of those whose nodes all go."""
        main = main_of(self._held).spec
        for place, parts in sorted(self._plan.specs.items()):
            for spec in parts:
                if spec.mesh_id not in self._stores:
                    request = pb.HostStoreRequest(
                        reservation_id=self._held.reservation_id,
                        mesh_id=spec.mesh_id,
                        python=main.python,
                        preload=main.preload,
                    )
                    node = self._plan.members[place]
                    reply: pb.HostStoreReply = await node.unary("HostStore", request, SPAWN_TIMEOUT_S)
                    self._stores[spec.mesh_id] = pb.StorePlace(host=reply.host, port=reply.port)

    def _fit(self, spec: pb.SpawnRequest) -> None:
        """Let a part of a mesh find the store, and go on with the numbers of runs."""
        store = self._stores[spec.mesh_id]
        spec.store.CopyFrom(store)
        spec.master_host, spec.master_port = store.host, store.port
        numbers = [
            mesh.last_number
            for _, status in self._held.nodes.values()
            for mesh in status.meshes
            if mesh.mesh_id == spec.mesh_id
        ]
        spec.last_number = max(numbers, default=0)

    async def _spawn(self, connection: Connection, specs: Sequence[pb.SpawnRequest]) -> None:
        for spec in specs:
            await connection.unary("Spawn", spec, SPAWN_TIMEOUT_S)

    async def _give_back(self) -> None:
        """The new nodes have no part of it, and there is no new mesh. A node that does not answer finds out by itself
        that nobody wants it."""
        if self._plan.makes:
            await stop_beside(self._stay, self._held.reservation_id, self._plan.makes)
        request = pb.ReleaseRequest(reservation_id=self._held.reservation_id, lease_id=self._lease_id)
        await answers({node: node.unary("Release", request) for node in self._plan.joining.values()})

    async def _settle(self) -> list[KeptFiles]:
        """Let the nodes know which they are."""
        facts, plan = self._held.facts, self._plan
        change = pb.ChangeMembersRequest(
            reservation_id=facts.reservation_id,
            revision=self._held.revision + 1,
            nodes=[peer_of(plan.members[place]) for place in sorted(plan.members)],
            pass_on=True,
            reason=plan.reason,
            held_s=facts.time_s - facts.time_left_s if facts.time_s else 0.0,
            files=self._record.files,
            shares=facts.shares,
            makes=plan.makes,
            before=[peer_of(held) for _, held in sorted(self._held.connections.items())],
            ends=plan.ends,
        )
        try:
            await self._stay[0].unary("ChangeMembers", change, SPAWN_TIMEOUT_S)
        except NodeUnreachable:
            raise  # it may have heard, and tells all; if not, the new nodes find out that nobody wants them
        except MonarchNbError:
            await self._give_back()
            raise
        change.pass_on = False
        others = [*plan.joining.values(), *self._stay[1:], *self._leave]  # they are told anyhow, but maybe later
        told = await answers({node: node.unary("ChangeMembers", change, SPAWN_TIMEOUT_S) for node in others})
        for node in plan.joining.values():
            if isinstance(error := told[node], BaseException):
                raise error
        await self._move_stores({member.node_id.partition(" at ")[0] for member in change.nodes})
        replies = [(node, told[node]) for node in self._leave]
        return [
            kept_on(node, reply.kept)
            for node, reply in replies
            if isinstance(reply, pb.ChangeMembersReply) and reply.HasField("kept")
        ]

    async def _move_stores(self, members: Collection[str]) -> None:
        """Stores that were on a node that is gone are hosted anew, before ranks look for them."""
        for mesh_id, keeper in self._keepers.items():
            place = self._stores[mesh_id]
            if place.node_id not in members:
                find = pb.FindStoreRequest(mesh_id=mesh_id, moves=place.moves, reservation_id=self._held.reservation_id)
                await keeper.unary("FindStore", find, SPAWN_TIMEOUT_S)


def _place_in(spec: pb.SpawnRequest, directory: str, *, sees: bool) -> None:
    """Let ranks start in a directory, on a node that sees it or has a copy."""
    below = os.path.relpath(directory, spec.root) if spec.root else "."
    spec.directory, spec.in_workspace = directory if sees else below, not sees


def peer_of(connection: Connection) -> files_pb2.Peer:
    """Return what nodes know of a node."""
    return files_pb2.Peer(node_id=connection.name, address=connection.node_address)
