"""What is leased and made on several nodes, tried again with others, and given back. One of the nodes looks after it:
should this process be killed half-way, nothing of it stays anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S, Connection
from monarch_nb.client.pools.answering import NotConnected
from monarch_nb.config import MAIN_MESH, cadence, patience
from monarch_nb.errors import CapacityError, MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.sizes import size

KEEPERS = 2
"""So many nodes are asked to look after it, one after the other: the first may be lost."""
KEEPER_TIMEOUT_S = patience(5.0)


@contextlib.asynccontextmanager
async def making(
    nodes: Sequence[Connection], reservation_id: str, *, mesh_id: str = "", owner: str = ""
) -> AsyncIterator[None]:
    """Make a mesh or a reservation in the block. When this process is gone before it is whole, it is ended everywhere;
    when the block fails, who made it is to end it.

    Args:
        mesh_id: a mesh of the reservation; empty: the reservation itself.
        owner: whose that is, when the nodes may not know it.

    Raises:
        NodeUnreachable: the node that looks after it can not be told that it is whole, and so will end it.
    """
    request = _request(nodes, reservation_id, mesh_id, owner)
    asked: list[Connection] = []
    keeper = None
    try:
        for node in _likely(nodes):
            node.hold_session()  # whose end tells it that we are gone
            asked.append(node)
            request.client_id = node.client_id
            with contextlib.suppress(MonarchNbError):  # what is to be made on them says why
                await node.unary("Undertake", request, KEEPER_TIMEOUT_S)
                keeper = node
                break
        yield
        if keeper is not None:
            request.done = True
            await keeper.unary("Undertake", request)
    finally:
        for node in asked:
            node.let_go()


async def leave_end(
    keepers: Sequence[Connection],
    nodes: Sequence[Connection],
    reservation_id: str,
    *,
    mesh_id: str = "",
    owner: str = "",
) -> Callable[[], Awaitable[None]] | None:
    """Have one of some nodes end a mesh or a reservation on others soon, whether this process is there or not.

    Returns:
        what tells that node that it is done: each of the others has ended it, or is told by somebody else; when this
        does not arrive, they are told once more. None when no node looks after it.
    """
    request = _request(nodes, reservation_id, mesh_id, owner)
    request.client_id = f"gone-{uuid.uuid4().hex}"  # as if who has undertaken it were gone
    for keeper in _likely(keepers):
        with contextlib.suppress(MonarchNbError):
            await keeper.unary("Undertake", request, KEEPER_TIMEOUT_S)
            return functools.partial(_ended, keeper, request)
    return None


async def _ended(keeper: Connection, request: pb.UndertakeRequest) -> None:
    request.done = True
    with contextlib.suppress(MonarchNbError):
        await keeper.unary("Undertake", request)


async def using(nodes: Sequence[Connection], reservation_id: str, mesh_id: str, linger_s: float) -> None:
    """Use a mesh, as long as this process is there: it is ended everywhere when all who have said so are gone for a
    while.

    Raises:
        NodeUnreachable: no node that could look after it answers.
    """
    request = _request(nodes, reservation_id, mesh_id, "")
    request.linger_s = linger_s
    for number, node in enumerate(keepers := nodes[:KEEPERS], start=1):
        node.hold_session()  # for good: its end says that we are gone
        request.client_id = node.client_id
        try:
            await node.unary("Undertake", request, KEEPER_TIMEOUT_S)
            return
        except NodeUnreachable:
            node.let_go()
            if number == len(keepers):
                raise


def several(nodes: Sequence[Connection]) -> Sequence[Connection]:
    """Return nodes if there are several: one does what is asked of it whole, and needs nobody who looks after that."""
    return nodes if len(nodes) > 1 else ()


def _likely(nodes: Sequence[Connection]) -> Sequence[Connection]:
    return sorted(nodes, key=lambda node: not node.up)[:KEEPERS]


def _request(nodes: Sequence[Connection], reservation_id: str, mesh_id: str, owner: str) -> pb.UndertakeRequest:
    peers = [Peer(node_id=node.name, address=node.node_address) for node in nodes]
    return pb.UndertakeRequest(reservation_id=reservation_id, mesh_id=mesh_id, owner=owner, nodes=peers)


SAY_S = cadence(1.0)
"""Who waits for so long is told why."""


class Claim:
    """A name of a reservation. Whoever has taken it is the only one, until it is given back or the process is gone. On
    the background loop.

    Args:
        node: the same for all who may want it.
    """

    def __init__(self, node: Connection, reservation_id: str, name: str) -> None:
        self._node, self._request = node, pb.ClaimRequest(reservation_id=reservation_id, name=name)
        self._call: AsyncGenerator[Any, None] | None = None

    async def take(self, say: Callable[[], None]) -> None:
        """Wait until nobody else has it.

        Args:
            say: called when that takes a while.

        Raises:
            NodeUnreachable: the node does not answer.
        """
        self._call = self._node.stream("Claim", self._request)
        granted = asyncio.ensure_future(anext(self._call))
        try:
            if not (await asyncio.wait({granted}, timeout=SAY_S))[0]:
                say()
            await granted
        except BaseException:
            granted.cancel()
            await asyncio.wait({granted})
            await self.give_back()
            raise

    async def give_back(self) -> None:
        """Let the next one have it."""
        if self._call is not None:
            await self._call.aclose()


T = TypeVar("T")
Attempt = Callable[[Collection[str]], Awaitable[T]]
"""Leases slots of nodes, but of those that are named; leaves nothing leased when it raises."""
MOST_RACES = 5
"""How often a reservation is tried when others lease first what was just free."""


class Outrun(Exception):
    """Somebody else has leased slots between our look and our lease."""


async def tried(attempt: Attempt[T], say: Callable[[str], None]) -> T:
    """Return what an attempt returns.

    Raises:
        CapacityError: not enough is free, or others were faster again and again.
        NotConnected: nodes do not reach each other, and no others are free.
    """
    avoided: dict[str, NotConnected] = {}
    while True:
        try:
            return await _raced(attempt, avoided)
        except NotConnected as error:
            if not error.worst:
                raise
            avoided[error.worst] = error
            say(f"without {error.worst}, as nodes do not reach each other")
        except CapacityError:
            if avoided:
                raise next(iter(avoided.values())) from None
            raise


async def _raced(attempt: Attempt[T], avoided: Collection[str]) -> T:
    outrun = ""
    for _ in range(MOST_RACES):
        try:
            return await attempt(avoided)
        except Outrun as error:
            outrun = str(error)
    raise CapacityError(f"other clients were faster {MOST_RACES} times; {outrun}", waiting_helps=True)


Place = tuple[Connection, pb.SpawnRequest]
"""A node, and what the ranks of the main mesh were started with there."""


def checked(name: str, per_host: Mapping[str, int]) -> None:
    """Raise UsageError unless a mesh can have this name and shape."""
    if name == MAIN_MESH:
        raise UsageError(f"{MAIN_MESH!r} is the mesh that the reservation has: choose another name")
    for label, count in per_host.items():
        if type(count) is not int or count < 1:
            raise UsageError(f"the size of {label!r} must be a whole number of at least 1, not {count!r}")


async def spawn_beside(
    places: Sequence[Place], name: str, per_host: Mapping[str, int], environment: Mapping[str, str]
) -> str:
    """Fork the ranks of one more mesh; return its id. When that fails somewhere, it is nowhere.

    Args:
        places: its nodes.
        per_host: its shape on each.
        environment: added to what the ranks of the main mesh have.

    Raises:
        SpawnError: ranks could not be started.
        NodeUnreachable: a node does not answer.
    """
    mesh_id = uuid.uuid4().hex
    ranks = math.prod(per_host.values())
    first, main = places[0]
    store_request = pb.HostStoreRequest(
        reservation_id=main.reservation_id, mesh_id=mesh_id, python=main.python, preload=main.preload
    )
    nodes = [connection for connection, _ in places]
    try:
        async with making(nodes, main.reservation_id, mesh_id=mesh_id):
            store: pb.HostStoreReply = await first.unary("HostStore", store_request, SPAWN_TIMEOUT_S)
            hosts = [("hosts", len(places))] if "hosts" not in per_host else []
            calls = []
            for number, (connection, like) in enumerate(places):
                spec = pb.SpawnRequest()
                spec.CopyFrom(like)
                spec.mesh_id, spec.name = mesh_id, name
                spec.first_rank, spec.ranks, spec.world_size = number * ranks, ranks, len(places) * ranks
                spec.node_rank, spec.master_host, spec.master_port = number, store.host, store.port
                spec.environment.update(environment)
                del spec.extent[:]
                spec.extent.extend(pb.Axis(name=label, size=size) for label, size in [*hosts, *per_host.items()])
                calls.append(asyncio.ensure_future(connection.unary("Spawn", spec, SPAWN_TIMEOUT_S)))
            await asyncio.wait(calls)
            for call in calls:
                call.result()
    except BaseException:
        await asyncio.shield(stop_beside(nodes, main.reservation_id, mesh_id))
        raise
    return mesh_id


async def stop_beside(nodes: Sequence[Connection], reservation_id: str, mesh_id: str) -> list[Connection]:
    """End a mesh; fine when it has ended. Return the nodes that do not answer: others have them end it when they do."""
    request = pb.StopMeshRequest(mesh_id=mesh_id)
    done = await leave_end(nodes, nodes, reservation_id, mesh_id=mesh_id)
    replies = await asyncio.gather(*(node.unary("StopMesh", request) for node in nodes), return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException) and not isinstance(reply, MonarchNbError):
            raise reply
    silent = [node for node, reply in zip(nodes, replies, strict=True) if isinstance(reply, NodeUnreachable)]
    there = [node for node in nodes if node not in silent]
    is_left = not silent or await leave_end(there, silent, reservation_id, mesh_id=mesh_id)
    if done and is_left:
        await done()
    return silent


MESSENGERS = 2
"""So many nodes remember a release of which another one does not know yet: one of them may be lost as well."""


@dataclass(frozen=True, repr=False)
class KeptFiles:
    """What ranks wrote into a node's copy of the notebook's files, which was removed; as text a line that says it.

    Attributes:
        directory: where it is now, on the node.
    """

    node: str
    directory: str
    files: int
    size_bytes: int

    def __str__(self) -> str:
        count = f"{self.files:,} file{'' if self.files == 1 else 's'}"
        return f"kept {count}, {size(self.size_bytes)}, that ranks wrote on {self.node}: {self.directory}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class KeptLogs:
    """What ranks printed, which outlives their reservation; as text a line that says so.

    Attributes:
        name: of the reservation. directory: where the output is, on the node.
    """

    name: str
    node: str
    directory: str

    def __str__(self) -> str:
        return f"%mesh logs {self.name} shows its output for 7 more days; files on {self.node}: {self.directory}"

    __repr__ = __str__


@dataclass
class ReleasedLater:
    """A node that did not answer when its reservation was given back.

    Attributes:
        host: that node. told_by: those that tell it when it does; without any, the next job of its engine does.
    """

    host: str
    told_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.told_by:
            return f"{self.host} does not answer: its ranks go on until the next job that reaches it ends them"
        tell = "tells" if len(self.told_by) == 1 else "tell"
        told_by = " and ".join(self.told_by)
        return f"{self.host} does not answer: its ranks go on until it does; then {told_by} {tell} it to end them"


Leftover = KeptFiles | KeptLogs | ReleasedLater


@dataclass
class Released:
    """What became of a release: why nodes did not answer, and what ranks wrote."""

    failed: list[MonarchNbError] = field(default_factory=list)
    logs: list[KeptLogs] = field(default_factory=list)
    kept: list[KeptFiles] = field(default_factory=list)
    later: list[ReleasedLater] = field(default_factory=list)

    @property
    def leftovers(self) -> list[Leftover]:
        """What there is to know of it; each can be printed."""
        return [*self.kept, *self.later, *self.logs]


async def release(connections: Iterable[Connection], reservation_id: str, owner: str = "", *, by: str = "") -> Released:
    """Give a reservation back on every node that answers; of these, some tell the others when they are back.

    Args:
        owner: whose it is, when that may be somebody else.
        by: where a person has asked for it, or with what ("in the panel"): others that use it are told so.
    """
    nodes = list(connections)
    request = pb.ReleaseRequest(reservation_id=reservation_id, owner=owner, by=by)
    done = await leave_end(several(nodes), nodes, reservation_id, owner=owner)
    released = await _release(nodes, request)
    if done and not any(isinstance(error, NodeUnreachable) for error in released.failed):
        await done()
    return released


async def _release(nodes: list[Connection], request: pb.ReleaseRequest) -> Released:
    released = Released()
    replies = await asyncio.gather(*(node.unary("Release", request) for node in nodes), return_exceptions=True)
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, MonarchNbError):
            released.failed.append(reply)
        elif isinstance(reply, BaseException):
            raise reply
        else:
            if reply.HasField("kept"):
                kept = reply.kept
                released.kept.append(KeptFiles(node.name, kept.directory, kept.files, kept.size_bytes))
            if reply.logs and not released.logs:
                released.logs.append(KeptLogs(reply.name, node.name, reply.logs))
    silent = [node for node, reply in zip(nodes, replies, strict=True) if isinstance(reply, NodeUnreachable)]
    there = [node for node, reply in zip(nodes, replies, strict=True) if not isinstance(reply, BaseException)]
    if silent and there:
        await _leave_to(there[:MESSENGERS], silent, released, request)
    return released


async def _leave_to(
    messengers: list[Connection], silent: list[Connection], released: Released, request: pb.ReleaseRequest
) -> None:
    """Have some nodes release a reservation on others, when these answer."""
    request.absent.extend(files_pb2.Peer(node_id=each.name, address=each.node_address) for each in silent)
    replies = await answers({each: each.unary("Release", request) for each in messengers})
    if told_by := tuple(each.name for each, reply in replies.items() if not isinstance(reply, BaseException)):
        released.later = [ReleasedLater(each.name, told_by) for each in silent]
        released.failed = [error for error in released.failed if not isinstance(error, NodeUnreachable)]


def not_released(name: str, error: MonarchNbError) -> MonarchNbError:
    """Return what is raised when a node could not release a reservation, and no other one tells it to."""
    if not isinstance(error, NodeUnreachable):
        return error
    again = "when one does, release it again, and that node tells the others"
    return NodeUnreachable(f"{name} is not released, because no node of it answers ({error}): {again}", error.node)
