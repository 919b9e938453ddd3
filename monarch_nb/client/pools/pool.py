"""A pool as a client sees it: the allocators that answer, what they hold, how a reservation is taken and given back.

Everything here runs on the background loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.client.connections.asking import STRAGGLER_S, answers
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S, Connection
from monarch_nb.client.connections.session import MeshSession
from monarch_nb.client.files.evidence import check_shared, nodes_seeing
from monarch_nb.client.files.project import holds_home
from monarch_nb.client.pools.answering import (
    Messenger,
    Step,
    all_away,
    check_ways,
    each_once,
    held_on,
    keep,
    mismatch,
    namesakes,
    nobody_answers,
    reasons,
    said_for_which,
    told_apart,
)
from monarch_nb.client.pools.answering import warning as namesakes_warning
from monarch_nb.client.pools.choosing import Shape, choose_nodes, lacking
from monarch_nb.client.pools.held import HeldReservation, current_owner, not_found, raise_if_released
from monarch_nb.client.pools.leasing import Outrun, making, release, several, tried
from monarch_nb.client.pools.others import no_nodes
from monarch_nb.config import patience
from monarch_nb.errors import (
    CapacityError,
    NodeUnreachable,
    PoolError,
    VersionMismatch,
)
from monarch_nb.ground.rank_sets import counted
from monarch_nb.ground.read_at_start import of_start
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.provision import Node, provisioner_of
from monarch_nb.provision.jobs import trouble, where_of
from monarch_nb.provision.known import check_known

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

STATUS_TIMEOUT_S = patience(15.0)
FLUSH_AT_EXIT_S = patience(10.0)
"""How long a process that ends waits for nodes to take in its last runs; Ctrl-C ends that sooner."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SpawnOptions:
    """How ranks are started.

    Attributes:
        directory: where, on this computer.
        root: of the project whose files ranks work with; "" for none.
        reload: modules that changed, before each run.
    """

    directory: str
    root: str = ""
    reload: bool = True
    python: str = ""
    preload: tuple[str, ...] = config.DEFAULT_PRELOAD
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def below_root(self) -> str:
        """Where ranks start in a copy of the project."""
        return os.path.relpath(self.directory, self.root) if self.root else "."

    @property
    def shared(self) -> str:
        """The storage that all nodes are to see, or an empty text."""
        return self.environment.get(config.SHARED_VARIABLE, "")


@dataclass(frozen=True)
class Terms:
    """Whose a reservation is to be, how long (seconds, 0 for no limit), and whether it takes GPUs that others use."""

    notebook: str = ""
    time_s: float = 0.0
    idle_s: float = 0.0
    force_busy: bool = False


class Pool:
    """The allocators of one pool."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections: dict[str, Connection] = {}
        """By the addresses at which nodes are reached from here."""
        self._messenger = Messenger(name)
        self._silent: dict[str, tuple[str, NodeUnreachable | VersionMismatch]] = {}
        """Of nodes that did not answer when all were asked last, or in another protocol: their addresses, and what
        asking them ended with."""
        self._asked: Collection[Connection] = ()
        self._told_of: dict[str, HeldReservation] = {}
        """Reservations by id, as they were told of last."""
        self._ended: dict[str, pb.Ended] = {}
        """Those that this process used, and that it was told the end of, by id."""
        self.listed: list[Connection] = []
        """The nodes that there were when all were asked last, each once, whether they answered or not."""
        self.namesakes = ""
        """What there is to say of nodes that are called alike; empty when none are."""

    @property
    def is_up(self) -> bool:
        """Whether a node lives."""
        return bool(self._living_nodes())

    @property
    def is_there(self) -> bool:
        """Whether a node lives, or did."""
        return any(node.alive or node.has_died for node in provisioner_of(self.name).nodes(pool=self.name))

    def revive(self, say: Progress) -> None:
        """Start the allocators again that died, to end what their ranks hold; they adopt their ranks.

        Raises:
            PoolError: one did not start.
        """
        provisioner_of(self.name).revive(pool=self.name, progress=say)

    def heal(self, say: Progress) -> None:
        """The same by itself, for whoever needs a node next: at most three times in ten minutes."""
        provisioner_of(self.name).heal(pool=self.name, progress=say)

    @property
    def silent(self) -> list[str]:
        """Nodes that did not answer when all were asked last."""
        return list(self._silent)

    def held_on_silent(self) -> Sequence[str] | None:
        """Return the names of what we held on these when they last answered a process of this computer; None when one
        never did."""
        return held_on(self.name, [address for address, _ in self._silent.values()])

    @property
    def identity(self) -> Identity | None:
        """Who we are to its nodes; None on this machine."""
        return next((node.identity for node in self._living_nodes()), None)

    @property
    def default_python(self) -> str:
        """The ranks' python when nobody says: this process's where nodes are on this machine, else the nodes' own."""
        return "" if self.identity else sys.executable

    def _living_nodes(self) -> list[Node]:
        return [node for node in provisioner_of(self.name).nodes(pool=self.name) if node.alive]

    async def discover(self) -> list[Connection]:
        """Return the connections to the nodes that live."""
        return [self.connection_to(node) for node in await asyncio.to_thread(self._living_nodes)]

    def connection_to(self, node: Node) -> Connection:
        """Return the one connection to a node."""
        connection = self.connections.get(node.address)
        if connection is not None and connection.identity and node.identity:
            connection.identity = node.identity  # meshes have this one: it goes on with a renewed certificate
        elif connection is None or connection.identity != node.identity:
            connection = self.connections[node.address] = Connection(node.node_id, node.address, node.identity)
            if node.node_address:
                connection.is_known_as(node.node_id, node.node_address)
        return connection

    async def ask(
        self, *, memory: bool = False, readings: bool = False, say: Progress | None = None
    ) -> list[tuple[Connection, pb.StatusReply]]:
        """Return what every living node says.

        Args:
            memory: of every rank, which takes some milliseconds each.
            readings: how busy nodes, GPUs and ranks are, where these are, and their memory (estimated).
            say: told for which nodes it waits, when it waits for long.

        Raises:
            PoolError: the pool has no living node.
            NodeUnreachable: none answers. VersionMismatch: none that speaks our protocol does.
        """
        connections = self._asked = await self.discover()
        if not connections:
            raise PoolError(await asyncio.to_thread(trouble, self.name) or no_nodes(self.name))
        request = pb.StatusRequest(memory=memory, readings=readings)
        calls = {
            connection: asyncio.ensure_future(connection.unary("Status", request, STATUS_TIMEOUT_S))
            for connection in connections
        }
        answered: list[tuple[Connection, pb.StatusReply]] = []
        silent: dict[str, tuple[str, NodeUnreachable | VersionMismatch]] = {}
        with said_for_which(calls, say):
            replies = await answers(calls)
        for connection, reply in replies.items():
            other = mismatch(connection, reply.node) if isinstance(reply, pb.StatusReply) else reply
            if isinstance(other, NodeUnreachable | VersionMismatch):  # all else goes on without it
                silent[connection.name] = connection.address, other
                continue
            if isinstance(reply, BaseException):
                raise reply
            await self._messenger.bring(connection, reply.node.revocations)
            answered.append((connection, reply))
        answered = each_once(answered)
        self._silent = silent  # only now: somebody else may ask meanwhile
        there = {connection for connection, _ in answered}
        self.listed = [one for one in connections if one in there or one.name in self.silent]
        self._name(answered)
        if not answered:
            for _, error in silent.values():
                if isinstance(error, VersionMismatch):
                    raise error
            whys = "; ".join(f"{name}: {why}" for name, why in (await self.why_silent()).items())
            said = await asyncio.to_thread(self._what_is_known, connections[0].identity)
            raise NodeUnreachable(f"no node of the pool {self.name!r} answers ({whys}); {said}")
        await asyncio.to_thread(keep, self.name, answered, [address for address, _ in silent.values()])
        return answered

    def _what_is_known(self, identity: Identity | None) -> str:
        """Return what there is to say when no node answers."""
        held = self.held_on_silent()
        return trouble(self.name) or nobody_answers(self.name, identity, held)

    async def why_silent(self, but: Collection[str] = ()) -> dict[str, str]:
        """Return why nodes did not answer when all were asked last, by name. `but`: those that need not be told of."""
        return await reasons({name: told for name, told in self._silent.items() if name not in but})

    def _name(self, answered: Sequence[tuple[Connection, pb.StatusReply]]) -> None:
        """Call nodes as they call themselves, those of one name with their addresses."""
        named = [(reply.node.node_id, reply.node.address) for _, reply in answered]
        alike = namesakes(named)
        for connection, reply in answered:
            name, address = reply.node.node_id, reply.node.address
            connection.is_known_as(told_apart(name, address) if name in alike else name, address)
        self.namesakes = namesakes_warning(named)

    async def reservations(
        self, *, memory: bool = False, readings: bool = False, say: Progress | None = None
    ) -> list[HeldReservation]:
        """Return every reservation that the living nodes hold, oldest first. Arguments as of `ask`."""
        told = await self.ask(memory=memory, readings=readings, say=say)
        request = pb.StatusRequest(memory=memory, readings=readings)
        return self.put_together([*told, *await self.told_by_members(told, request)])

    async def told_by_members(
        self, told: Collection[tuple[Connection, pb.StatusReply]], request: pb.StatusRequest
    ) -> list[tuple[Connection, pb.StatusReply]]:
        """Return what those nodes of reservations say that were not asked: a node may be taken off the pool's list, or
        out of its directory, while it is held, and answer all the same.

        Args:
            told: what those said that are on the list.
        """
        away = {node for held in self._told(told) for node in held.absent.values() if node.identity is not None}
        unasked = away.difference(self._asked)
        said = await answers({node: node.unary("Status", request, STRAGGLER_S) for node in unasked})
        return [(node, reply) for node, reply in said.items() if isinstance(reply, pb.StatusReply)]

    def put_together(self, answers: Collection[tuple[Connection, pb.StatusReply]]) -> list[HeldReservation]:
        """Return the reservations of which their nodes have told, oldest first."""
        return sorted((one for one in self._told(answers) if one.nodes), key=lambda one: one.facts.created_at)

    def _told(self, answers: Collection[tuple[Connection, pb.StatusReply]]) -> list[HeldReservation]:
        """Return the reservations of which any nodes have told, also of those where only replaced ones did."""
        there = {connection for connection, _ in answers}
        self._told_of = {
            known: held for known, held in self._told_of.items() if there.isdisjoint(held.connections.values())
        }
        told: dict[str, list[tuple[Connection, pb.ReservationStatus]]] = {}
        for connection, reply in answers:
            for status in reply.reservations:
                told.setdefault(status.reservation_id, []).append((connection, status))
        held = [self._held(reservation_id, parts) for reservation_id, parts in told.items()]
        self._told_of |= {one.reservation_id: one for one in held}
        return held

    def _held(self, reservation_id: str, parts: list[tuple[Connection, pb.ReservationStatus]]) -> HeldReservation:
        """Return a reservation as its nodes have told of it. A node that has no place any more, or another one, may not
        know that yet, and one that is just coming is none yet."""
        newest = max((status for _, status in parts), key=lambda status: (status.revision, len(status.members)))
        identity, members = parts[0][0].identity, dict(enumerate(newest.members))
        numbers = {peer.address: number for number, peer in members.items()}
        names = {peer.node_id: number for number, peer in members.items()}
        nodes = {}
        for connection, status in parts:
            number = numbers.get(connection.node_address, names.get(connection.name))
            if number is not None or not members:
                nodes[status.node_rank if number is None else number] = connection, status
        away = {rank: peer for rank, peer in members.items() if rank not in nodes}
        absent = {rank: self.connection_with(peer, identity) for rank, peer in away.items()}
        return HeldReservation(reservation_id, nodes, absent, list(members.values()), newest.revision)

    def connection_with(self, peer: files_pb2.Peer, identity: Identity | None) -> Connection:
        """Return the connection to a node by what other nodes know of it: that may be how it is reached from here too,
        where it has not been asked yet."""
        known = self.connections.values()
        for connection in known:
            if peer.address in (connection.node_address, connection.address):
                connection.is_known_as(peer.node_id, peer.address)
                return connection
        made = self.connections[peer.address] = Connection(peer.node_id, peer.address, identity)
        return made

    async def find(self, name: str, say: Progress | None = None) -> HeldReservation | None:
        """Return our newest reservation of that name. `say` as of `ask`."""
        called = [held for held in await self.reservations(say=say) if held.facts.name == name and held.is_mine]
        return called[-1] if called else None

    async def held(self, reservation_id: str, name: str, *, memory: bool = False) -> HeldReservation:
        """Return what the living nodes hold of a reservation. `memory` as of `ask`.

        Raises:
            ReservationNotFound: it was released; the message says what is held, or why it ended.
            NodeUnreachable: no node of it answers.
        """
        try:
            held = await self.reservations(memory=memory)
        except (NodeUnreachable, PoolError):
            raise_if_released(self.end_of(reservation_id))
            raise
        for one in held:
            if one.reservation_id == reservation_id:
                return one
        if away := self.away(reservation_id):
            raise_if_released(self.end_of(reservation_id))
            raise all_away(name, away)
        ended = [one for one in await self.ended() if one.reservation_id == reservation_id]
        raise not_found(name, held, ended, silent=self.silent)

    def away(self, reservation_id: str) -> list[str]:
        """Return the nodes of a reservation of which none did answer when all were asked last; none if one did."""
        told = self._told_of.get(reservation_id)
        nodes = [node.name for node in told.connections.values()] if told else []
        return nodes if all(name in self._silent for name in nodes) else []

    def end_of(self, reservation_id: str) -> pb.Ended | None:
        """Return what this process was told of the end of a reservation, whose nodes may not answer any more."""
        return self._ended.get(reservation_id)

    def note_end(self, ended: pb.Ended) -> None:
        """A node says that a reservation that this process uses was released: it may be gone when it is asked again."""
        self._ended[ended.reservation_id] = ended

    async def ended(self) -> list[pb.Ended]:
        """Return the owner's reservations that ended by themselves, as far as they are remembered, oldest first."""
        answers = await self.ask()
        mine = current_owner(answers[0][0].identity)
        ended = {one.reservation_id: one for _, reply in answers for one in reply.ended if one.owner == mine}
        return sorted(ended.values(), key=lambda one: one.ended_at)

    async def reserve(
        self, name: str, shape: Shape, options: SpawnOptions, terms: Terms, say: Progress
    ) -> HeldReservation:
        """Lease slots on enough nodes and spawn the main mesh.

        Interrupted or failed, it gives everything back. When others are faster on a node, others are chosen.

        Raises:
            CapacityError: not enough is free; the message says what is and who holds the rest.
            SharedStorageError: a node does not see the shared storage.
            NodeUnreachable: a node does not answer, or does not reach another.
            SpawnError: ranks could not be started.
        """
        return await tried(lambda avoided: self._reserve(name, shape, options, terms, say, avoided), say)

    async def _reserve(
        self,
        name: str,
        shape: Shape,
        options: SpawnOptions,
        terms: Terms,
        say: Progress,
        avoided: Collection[str],
    ) -> HeldReservation:
        answers = [one for one in await self.ask(say=say) if one[0].name not in avoided]
        described = [reply.node for _, reply in answers]
        silent = await self.why_silent() if self.silent and lacking(shape, described) else {}
        chosen = choose_nodes(shape, described, force_busy=terms.force_busy, silent=silent, own_pid=os.getpid())
        connections = [answers[index][0] for index in chosen]
        owner = current_owner(connections[0].identity)
        reservation_id, created_at = uuid.uuid4().hex, time.time()
        requests = [
            pb.ReserveRequest(
                reservation_id=reservation_id,
                name=name,
                owner=owner,
                procs=shape.procs,
                gpus=shape.gpus,
                node_rank=node_rank,
                nodes=shape.nodes,
                notebook=terms.notebook,
                created_at=created_at,
                time_s=terms.time_s,
                idle_s=terms.idle_s,
                force_busy=terms.force_busy,
                client_id=connection.client_id,
                where=where_of(self.name),
            )
            for node_rank, connection in enumerate(connections)
        ]
        for connection in connections:
            connection.hold_session()  # when it breaks off, the nodes take what is half-made back
        try:
            async with making(several(connections), reservation_id, owner=owner):
                with Step(f"leasing {shape}", say) as step:
                    await lease(dict(zip(connections, requests, strict=True)), step)
                    step.waits_for("the nodes to reach each other")
                    await check_ways(connections)
                    if options.shared:  # only now: who holds nothing on a node of others has no files looked for there
                        step.waits_for(f"the nodes to look for {options.shared}")
                        await check_shared(connections, options.shared)
                    step.waits_for(f"the nodes to look for {options.directory}")
                    seen = await nodes_seeing(connections, options.directory)
                if not all(seen) and options.root and holds_home(Path(options.root)):
                    options = replace(options, root="")  # never copied whole
                own = ", ".join(of_start(options.environment, os.environ, ()))
                by = f", from a Python that starts with {own}" if own else ""
                with Step(f"starting {counted(shape.nodes * shape.per_node, 'rank')}{by}", say) as step:
                    step.waits_for(
                        f"the nodes to import {', '.join(options.preload)}" if options.preload else "the nodes"
                    )
                    await spawn_mesh(connections, reservation_id, "main", shape, options, seen)
                nodes = [files_pb2.Peer(node_id=each.name, address=each.node_address) for each in connections]
                confirm = pb.ConfirmRequest(reservation_id=reservation_id, nodes=nodes)
                await all_of(connection.unary("Confirm", confirm) for connection in connections)
            return await self.held(reservation_id, name)
        except BaseException:
            await asyncio.shield(release(connections, reservation_id))
            raise
        finally:
            for connection in connections:
                connection.let_go()

    async def described(self) -> list[pb.DescribeReply]:
        """Return the facts of the nodes that answer."""
        return [reply.node for _, reply in await self.ask()]

    async def shutdown(self, *, force: bool) -> None:
        """End every node."""
        request = pb.ShutdownRequest(force=force)
        await all_of(connection.unary("Shutdown", request) for connection in await self.discover())


def in_order(connections: Iterable[Connection]) -> list[Connection]:
    """Return nodes in the order that all clients have."""
    return sorted(connections, key=lambda connection: connection.name)


async def lease(requests: Mapping[Connection, pb.ReserveRequest], step: Step) -> None:
    """Lease slots of nodes, one after the other, in the order in which every client does.

    So of clients that want the same nodes one gets them: whoever is refused on a node was outrun by one that goes on
    to later nodes only, and the last of these is refused nowhere.
    """
    for connection in in_order(requests):
        step.waits_for(f"{connection.name} to answer")
        try:
            await connection.unary("Reserve", requests[connection])
        except CapacityError as error:
            raise Outrun(f"{connection.name}: {error}") from None


async def spawn_mesh(
    connections: list[Connection],
    reservation_id: str,
    name: str,
    shape: Shape,
    options: SpawnOptions,
    seen: Sequence[bool],
) -> str:
    """Host a mesh's store on the first node and fork its ranks on all; return the mesh's id.

    Args:
        seen: which nodes see the directory in which ranks are to start; on others they start in a copy of it.
    """
    mesh_id = uuid.uuid4().hex
    store_request = pb.HostStoreRequest(
        reservation_id=reservation_id, mesh_id=mesh_id, python=options.python, preload=options.preload
    )
    store: pb.HostStoreReply = await connections[0].unary("HostStore", store_request, SPAWN_TIMEOUT_S)
    requests = [
        pb.SpawnRequest(
            reservation_id=reservation_id,
            mesh_id=mesh_id,
            name=name,
            first_rank=node_rank * shape.per_node,
            ranks=shape.per_node,
            world_size=shape.nodes * shape.per_node,
            node_rank=node_rank,
            master_host=store.host,
            master_port=store.port,
            directory=options.directory if sees else options.below_root,
            in_workspace=not sees,
            root=options.root,
            reload=options.reload,
            python=options.python,
            preload=options.preload,
            environment=options.environment,
            extent=[pb.Axis(name="hosts", size=shape.nodes), pb.Axis(name=f"{shape.kind}s", size=shape.per_node)],
        )
        for node_rank, sees in zip(range(shape.nodes), seen, strict=True)
    ]
    await all_of(c.unary("Spawn", r, SPAWN_TIMEOUT_S) for c, r in zip(connections, requests, strict=True))
    return mesh_id


async def all_of(calls: Iterable[object]) -> None:
    """Wait for every call, also when one fails; then raise the first failure."""
    tasks = [asyncio.ensure_future(call) for call in calls]  # type: ignore[call-overload]
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for task in tasks:
            task.cancel()
    for task in tasks:
        task.result()


_pools: dict[str, Pool] = {}


def _flush_at_exit() -> None:
    sessions = list(MeshSession.alive)
    connections = [connection for pool in _pools.values() for connection in pool.connections.values()]
    try:
        call(_flush([*connections, *sessions]), FLUSH_AT_EXIT_S)
    except (TimeoutError, KeyboardInterrupt):
        if late := ", ".join(node for session in sessions for node in session.submitting_to()):
            sys.stderr.write(f"monarch_nb: the last runs may be lost on {late}: no answer before the end\n")


async def _flush(each: Iterable[Connection | MeshSession]) -> None:
    await asyncio.gather(*(one.flush() for one in each))


def pool_named(name: str | None) -> Pool:
    """Return this process's one Pool object of that name, or of the default one.

    Raises:
        NoSuchPool: there is no such pool.
    """
    check_known(name or config.default_pool())
    return pool_object(name)


def pool_object(name: str | None) -> Pool:
    """Return the same, also where there is no such pool, or not any more: what it is asked says so."""
    chosen = name or config.default_pool()
    if not _pools:
        atexit.register(_flush_at_exit)
    return _pools.setdefault(chosen, Pool(chosen))


def known_connections() -> dict[str, Connection]:
    """Return the connections of this process, by the addresses by which nodes know each other."""
    return {
        connection.node_address: connection
        for pool in list(_pools.values())
        for connection in list(pool.connections.values())
    }
