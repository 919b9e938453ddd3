"""The rooms of a gateway: one for each account that holds something. Opened when first needed, and again when they end
while their account holds something: they find their ranks again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from monarch_nb.config import cadence, gap, patience

from monarch_nb.rpc.channel import OpenChannel, open_channel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.allocator.gateway.access import NOT_YET
from monarch_nb.allocator.gateway.frames import SESSION, Frames
from monarch_nb.allocator.gateway.outgoing import Outgoing
from monarch_nb.allocator.gateway.pipe import Pipe
from monarch_nb.allocator.gateway.starters import Starter
from monarch_nb.allocator.state.rights import Right, right_of
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable, PoolError, WardenRefused
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub
from monarch_nb.rpc.callers import Caller, caller_told, told_to_room
from monarch_nb.rpc.status import translate
from monarch_nb.trust.identity import ADMIN

_log = logging.getLogger(__name__)

START_S = patience(60.0)
RESUME_S = patience(15.0)
CALL_S = patience(600.0)
ANSWER_S = patience(5.0)
LONGEST_LINE_BYTES = 4096
END_S = patience(60.0)
"""So long a room may take to end the processes of a reservation. Then they are killed."""
AGAIN_S, LONGEST_WAIT_S = cadence(1.0), cadence(60.0)
"""The first wait before something is tried again, and the longest: everybody waits while the warden tries."""
MOST_NAMED = 10_000
"""Nodes of one reservation."""
UNUSED_S = gap(600.0)
"""A room whose account has held nothing for so long is ended."""
GATEWAY = Caller("gateway", ADMIN, local=True)

Connect = Callable[[], Awaitable[socket.socket]]


class Room:
    """One room that runs.

    Attributes:
        stub: for calls. is_down: set when it has ended.
    """

    def __init__(self, account: str, pipe: Pipe, outgoing: Outgoing, connect: Connect) -> None:
        self.account, self._pipe, self._outgoing, self.is_down = account, pipe, outgoing, asyncio.Event()
        self._connect, self._connecting = connect, asyncio.Lock()
        self._channel = open_channel(f"unix:{pipe.path}")
        self.stub: Any = AllocatorStub(self._channel)  # type: ignore[no-untyped-call, unused-ignore]

    async def open(self) -> None:
        """Begin to listen for what is to go there."""
        await self._pipe.listen()
        await self._outgoing.open()

    async def call(self, method: str, request: Any, caller: Caller, timeout_s: float = CALL_S) -> Any:
        """Call a method of the room; a failure raises what the room raised."""
        with self.failures():
            return await getattr(self.stub, method)(request, timeout=timeout_s, metadata=told_to_room(caller))

    async def open_session(self, frames: Frames, caller: Caller, opening: pb.Open) -> None:
        """Begin a session in somebody's name.

        Raises:
            OSError: and MonarchNbError, when the room does not listen.
        """
        async with self._connecting:  # one at a time: connecting to a room that is stopped keeps the warden from others
            try:
                connection = await self._connect()
            except (OSError, MonarchNbError):
                await asyncio.sleep(AGAIN_S)
                raise
        connection.send(SESSION)
        await frames.open(connection, caller_told(caller), pb.SessionRequest(open=opening).SerializeToString())

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """A call of the room that fails within raises what the room raised, or that it does not answer."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            found = translate(error, f"the room of {self.account}")
            raise (self._silent() if isinstance(found, NodeUnreachable) else found) from None
        except grpc.aio.UsageError:  # it has been closed
            raise self._silent() from None
        except asyncio.CancelledError:
            # So ends what is under way when it is closed. gRPC would never tell whoever called the gateway.
            task = asyncio.current_task()
            if not self.is_down.is_set() or task is None or task.cancelling():
                raise
            raise self._silent() from None

    def _silent(self) -> NodeUnreachable:
        return NodeUnreachable(f"the allocator of {self.account} on this node does not answer: try again")

    async def close(self) -> None:
        """Connect to it no more."""
        self.is_down.set()
        self._pipe.close()
        await self._channel.close()
        await self._outgoing.close()


class Rooms:
    """Knows them.

    Args:
        starter: opens them.
        sockets: a directory that nobody else can enter.
        state: what is leased, to whom.
        begin_in_room: of Leases.
        open_channel: to another node. certificate: what this node shows there now.

    Attributes:
        meshes: by id, the reservations that they are of.
        resuming: accounts whose rooms have not said yet which meshes they have.
    """

    def __init__(
        self,
        starter: Starter,
        sockets: Path,
        state: NodeState,
        begin_in_room: Callable[[str, str], None],
        open_channel: OpenChannel,
        certificate: Callable[[], object],
    ) -> None:
        self._starter, self._sockets, self._state, self._begin = starter, sockets, state, begin_in_room
        self._open_channel, self._certificate = open_channel, certificate
        self._named: dict[str, set[str]] = {}
        """By reservation, the addresses of nodes that its owner has named before it was confirmed."""
        self._rooms: dict[str, asyncio.Task[Room]] = {}
        self._accounts: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unused: dict[str, asyncio.TimerHandle] = {}
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """By reservation: its room does not begin it while it ends."""
        self._doors = WeakValueDictionary[str, asyncio.Lock]()
        """By account: its room is not opened while it is closed."""
        self._grouped: set[str] = set()
        """Reservations whose processes the starter keeps together."""
        for left in (*sockets.glob("r-*"), *sockets.glob("o-*")):  # by an earlier gateway
            left.unlink()
        self._is_closing = False
        self.meshes: dict[str, str] = {}
        self.resuming: set[str] = set()

    # ---- whose what is ----

    async def account_of(self, person: str) -> str:
        """Return as which account a person runs.

        Raises:
            AccessDenied: as none; the message says why.
        """
        found = (await asyncio.to_thread(self._starter.accounts, [person]))[person]
        if found.refused:
            _log.warning("%s is refused: %s", person, found.refused)
            raise AccessDenied(found.refused)
        self._accounts[person] = found.account
        return found.account

    async def of_reservation(self, reservation_id: str) -> Room:
        """Return the room of a reservation's owner.

        Raises:
            ReservationNotFound: it is not held here.
        """
        return await self._of(self._state.lease(reservation_id))

    async def of_mesh(self, mesh_id: str) -> Room:
        """Return the room that has a mesh.

        Raises:
            MeshNotFound: none does. ReservationNotFound: and its like, when its reservation was released.
            NodeUnreachable: it may be in a room that does not answer yet.
        """
        if (reservation_id := self.meshes.get(mesh_id)) is None:
            if self.resuming:
                raise NodeUnreachable(NOT_YET)
            self._state.mesh(mesh_id)
            raise self._state.no_mesh(mesh_id)
        return await self.of_reservation(reservation_id)

    def account_of_mesh(self, mesh_id: str) -> str:
        """Return as whom a mesh runs; "" when it is not known."""
        lease = self._state.leases.get(self.meshes.get(mesh_id, ""))
        return self._account(lease) if lease is not None else ""

    async def of_person(self, person: str) -> Room:
        """Return a person's own room; of somebody who holds nothing here, that of who lets them run cells.

        Raises:
            AccessDenied: nobody does.
        """
        leases = self._state.leases.values()
        for lease in sorted(leases, key=lambda lease: lease.request.owner != person):
            if right_of(person, lease) >= Right.RUN:
                return await self._of(lease)
        raise AccessDenied(f"{person} holds nothing on this node, and so has no files there: reserve first")

    async def of_holder(self, person: str) -> Room:
        """Return the room of somebody who holds something on this node.

        Raises:
            AccessDenied: they do not.
        """
        for lease in self._state.leases.values():
            if lease.request.owner == person:
                return await self._of(lease)
        raise AccessDenied(f"{person} holds nothing on this node")

    def name_nodes(self, reservation_id: str, nodes: Iterable[files_pb2.Peer]) -> None:
        """The owner of a reservation says which nodes it has, or is about to have."""
        named = self._named.setdefault(reservation_id, set()) if reservation_id in self._state.leases else set()
        if len(named) < MOST_NAMED:
            named.update(node.address for node in nodes)

    def _may_reach(self, account: str, address: str, owner: str) -> bool:
        """Whether the room of an account may talk to the node at an address in a person's name."""
        return any(
            lease.number_of(address) is not None or address in self._named.get(key, ())
            for key, lease in self._state.leases.items()
            if lease.request.owner == owner and self._account(lease) == account
        )

    async def _of(self, lease: Lease) -> Room:
        return await self.room(self._account(lease) or await self.account_of(lease.request.owner))

    def _account(self, lease: Lease) -> str:
        """Return as whom a reservation's ranks run: as when it began, whatever users.toml says by now."""
        return lease.account or self._accounts.get(lease.request.owner, "")

    async def _account_known(self, owner: str) -> str:
        return self._accounts.get(owner) or await self.account_of(owner)

    def _is_used(self, account: str) -> bool:
        return any(self._account(lease) == account for lease in self._state.leases.values())

    def is_in(self, room: Room, reservation_id: str) -> bool:
        """Whether a reservation is one of those that a room has."""
        lease = self._state.leases.get(reservation_id)
        return lease is not None and self._account(lease) == room.account

    # ---- open ----

    async def room(self, account: str) -> Room:
        """Return the room of an account, which is opened when it does not run."""
        opening = self._rooms.get(account)
        if opening is None or (opening.done() and _opened(opening) is None):
            opening = self._rooms[account] = asyncio.create_task(self._open(account))
        return await asyncio.shield(opening)

    def _door(self, account: str) -> asyncio.Lock:
        return self._doors.setdefault(account, asyncio.Lock())

    async def _open(self, account: str) -> Room:
        async with self._door(account):
            try:
                found = await asyncio.to_thread(self._starter.room, account)
                found.connection.close()
                pidfd = found.pidfd
            except MonarchNbError:
                pidfd = await self._start(account)
            room = self._room_of(account)
            loop = asyncio.get_running_loop()
            loop.add_reader(pidfd, self._has_ended, room, pidfd)
            try:
                await room.open()
                _log.info("the room of %s is open", account)
                await self._take_in(room)
                if room.is_down.is_set():
                    raise NodeUnreachable(f"the allocator of {account} on this node has ended: try again")
            except BaseException:
                if not room.is_down.is_set():  # the process may go on: whoever opens it next looks after that
                    loop.remove_reader(pidfd)
                    os.close(pidfd)
                await room.close()
                raise
            return room

    def _room_of(self, account: str) -> Room:
        name = f"{hashlib.sha256(account.encode()).hexdigest()[:12]}-{os.urandom(4).hex()}"
        connect = functools.partial(asyncio.to_thread, self._starter.way_out, account)
        of_other_nodes = functools.partial(self._may_reach, account), self._open_channel, self._certificate
        pipe = Pipe(self._sockets / f"r-{name}", functools.partial(self._connect, account))
        return Room(account, pipe, Outgoing(self._sockets / f"o-{name}", connect, *of_other_nodes), connect)

    async def _start(self, account: str) -> int:
        opened = await asyncio.to_thread(self._starter.open_room, account)
        try:
            async with asyncio.timeout(START_S):
                line = await _first_line(opened.ready)
        except TimeoutError:
            line = b""
        finally:
            os.close(opened.ready)
        if not _says_that_it_serves(line):
            os.close(opened.pidfd)
            raise PoolError(f"the allocator of {account} did not start on this node: its room.log says why")
        return opened.pidfd

    async def _connect(self, account: str) -> Any:
        found = await asyncio.to_thread(self._starter.room, account)
        os.close(found.pidfd)
        return found.connection

    async def _take_in(self, room: Room) -> None:
        """Learn what a room has, and end there what nobody holds any more."""
        status: pb.StatusReply = await room.call("Status", pb.StatusRequest(), GATEWAY, START_S)
        for reservation in status.reservations:
            reservation_id = reservation.reservation_id
            if (lease := self._state.leases.get(reservation_id)) is None:
                await room.call("Release", pb.ReleaseRequest(reservation_id=reservation_id), GATEWAY, END_S)
            elif self._account(lease) == room.account:
                for mesh in reservation.meshes:
                    self.meshes.setdefault(mesh.mesh_id, reservation_id)

    def _has_ended(self, room: Room, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        room.is_down.set()
        if _opened(self._rooms.get(room.account)) is room:  # else the next one is open, or is about to be
            del self._rooms[room.account]
        self._do(self._go_on(room))

    async def _go_on(self, room: Room) -> None:
        await room.close()
        wait_s = AGAIN_S
        while self._is_used(room.account) and not self._is_closing:
            _log.warning("the room of %s has ended: it is opened again", room.account)
            try:
                await self.room(room.account)
                return
            except MonarchNbError as error:
                _log.warning("the room of %s can not be opened: %s", room.account, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def resume(self) -> None:
        """Find again what an earlier gateway has opened. Whoever has stopped their room does not keep the node from
        everybody: after RESUME_S it serves the others."""
        self._grouped |= self._state.leases.keys()
        for owner in {lease.request.owner for lease in self._state.leases.values() if not lease.account}:
            with contextlib.suppress(MonarchNbError):  # said in the log; whoever asks for it is told
                await self.account_of(owner)
        self.resuming |= {account for lease in self._state.leases.values() if (account := self._account(lease))}
        for account in await asyncio.to_thread(self._starter.rooms):
            if account not in self.resuming:
                self._close_later(account)
        if tasks := [self._do(self._resume(account)) for account in sorted(self.resuming)]:
            await asyncio.wait(tasks, timeout=RESUME_S)

    async def _resume(self, account: str) -> None:
        try:
            await self.room(account)
        except MonarchNbError as error:
            _log.warning("the room of %s can not be opened: %s", account, error)
        finally:
            self.resuming.discard(account)

    # ---- what concerns both ----

    async def reserve(self, request: pb.ReserveRequest, gpus: Sequence[pb.Gpu]) -> None:
        """Have the owner's room lease what the gateway has leased. Both know when its time is up: ranks save before."""
        lease = self._state.lease(request.reservation_id)
        account = lease.account or await self._account_known(request.owner)
        if timer := self._unused.pop(account, None):
            timer.cancel()
        given = pb.ReserveRequest()
        given.CopyFrom(request)
        given.idle_s = 0.0  # the gateway looks after that: it knows who is attached
        given.memory_bytes, given.cpus = 0, 0.0  # the warden sees to that
        given.gpu_indices[:] = [gpu.index for gpu in gpus]
        async with self._turn(request.reservation_id):
            room = await self.room(account)
            self._begin(request.reservation_id, account)  # unless it was released while the room opened
            if request.reservation_id not in self._grouped:
                amounts = request.memory_bytes or None, request.cpus or None, [gpu.minor for gpu in gpus]
                await asyncio.to_thread(self._starter.reserve_group, account, request.reservation_id, *amounts)
                self._grouped.add(request.reservation_id)
            await room.call("Reserve", given, GATEWAY, START_S)

    def _turn(self, reservation_id: str) -> asyncio.Lock:
        return self._turns.setdefault(reservation_id, asyncio.Lock())

    async def end(self, reservation_id: str) -> int:
        """End a reservation in its room; return how many ranks there were."""
        meshes = [mesh_id for mesh_id, of in self.meshes.items() if of == reservation_id]
        for mesh_id in meshes:
            del self.meshes[mesh_id]
        if ended := self._state.ended.get(reservation_id):
            ended.mesh_ids.extend(meshes)
        async with self._turn(reservation_id):
            lease = self._state.leases.get(reservation_id)
            account = self._account(lease) if lease else ""
            ranks = await self._end_in(account, reservation_id) if account and reservation_id in self._grouped else 0
            self._grouped.discard(reservation_id)
        self._named.pop(reservation_id, None)
        if account:
            self._close_later(account)
        return ranks

    def _close_later(self, account: str) -> None:
        if account not in self._unused:
            loop = asyncio.get_running_loop()
            self._unused[account] = loop.call_later(UNUSED_S, lambda: self._do(self._close_unused(account)))

    async def _end_in(self, account: str, reservation_id: str) -> int:
        """End what runs of a reservation, however long it takes: until then its slots are not given to anybody else."""
        ranks = None
        try:
            room = await self.room(account)
            reply = await room.call("Release", pb.ReleaseRequest(reservation_id=reservation_id), GATEWAY, END_S)
            ranks = int(reply.ranks_ended)
        except MonarchNbError as error:
            _log.warning("reservation %s is ended by force: %s", reservation_id, error)
        try:
            is_ended = await self._insist(self._starter.end_group, account, reservation_id) is not None
            if ranks is None and not is_ended:
                _log.warning("there are no cgroups (v2): all that %s has on this node is ended with it", account)
                async with self._door(account):
                    await self._insist(self._starter.close_room, account)
        except WardenRefused as refused:  # there is none: the reservation was never whole
            if refused.is_unfinished:
                raise
        return ranks or 0

    async def _insist(self, end: Callable[..., object], *arguments: str) -> object:
        wait_s = AGAIN_S
        while True:
            try:
                return await asyncio.to_thread(end, *arguments)
            except WardenRefused as refused:
                if not refused.is_unfinished or self._is_closing:
                    raise
                _log.warning("%s", refused)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _close_unused(self, account: str) -> None:
        self._unused.pop(account, None)
        async with self._door(account):  # whoever reserves meanwhile gets the next room
            if self._is_used(account):
                return
            if room := _opened(self._rooms.pop(account, None)):
                await room.close()
            try:
                await asyncio.to_thread(self._starter.close_room, account)
            except WardenRefused as refused:
                _log.warning("%s", refused)
                if refused.is_unfinished:
                    self._close_later(account)
            except MonarchNbError as error:  # whoever opens it next finds it as it is
                _log.warning("the room of %s is not ended: %s", account, error)

    async def idle_s(self, reservation_id: str) -> float | None:
        """Return how long nothing has run in a reservation; None when its room does not say."""
        try:
            room = await self.of_reservation(reservation_id)
            reply = await room.call("Idle", pb.IdleRequest(reservation_id=reservation_id), GATEWAY, START_S)
        except MonarchNbError:
            return None
        return float(reply.idle_for_s)

    async def running(self) -> set[str]:
        """Return the reservations in which something runs now, as far as rooms say."""
        living = [room for opening in self._rooms.values() if (room := _opened(opening))]
        asked = (room.call("Status", pb.StatusRequest(), GATEWAY, ANSWER_S) for room in living)
        found = set[str]()
        for room, told in zip(living, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            for reservation in told.reservations if isinstance(told, pb.StatusReply) else ():
                ranks = (rank for mesh in reservation.meshes for rank in mesh.ranks)
                is_busy = any(rank.state == pb.Rank.STATE_RUNNING for rank in ranks)
                if is_busy and self.is_in(room, reservation.reservation_id):
                    found.add(reservation.reservation_id)
        return found

    async def close(self, *, end_processes: bool) -> None:
        """Connect to rooms no more; with `end_processes` they end, with all that is in them."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for timer in self._unused.values():
            timer.cancel()
        closing = (self._close(*each, end_processes=end_processes) for each in self._rooms.items())
        await asyncio.gather(*closing)

    async def _close(self, account: str, opening: asyncio.Task[Room], *, end_processes: bool) -> None:
        if not opening.done():  # whoever has stopped their room keeps no gateway from its end
            opening.cancel()
            await asyncio.wait([opening])
        if room := _opened(opening):
            if end_processes:
                with contextlib.suppress(MonarchNbError):
                    await room.call("Shutdown", pb.ShutdownRequest(force=True), GATEWAY, END_S)
                await asyncio.wait([asyncio.ensure_future(room.is_down.wait())], timeout=END_S)
            await room.close()
        if end_processes:
            with contextlib.suppress(MonarchNbError):
                await asyncio.to_thread(self._starter.close_room, account)


def _opened(opening: asyncio.Task[Room] | None) -> Room | None:
    """Return the room that a task has opened; None while it does, and when it could not."""
    if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
        return None
    return opening.result()


def _says_that_it_serves(line: bytes) -> bool:
    """Whether a room has started. Its account may have made it write anything."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        return "serving" in json.loads(line)
    return False


async def _first_line(pipe: int) -> bytes:
    """Return the first line that comes from a pipe; b"" when it ends before."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    os.set_blocking(pipe, False)
    found = b""
    loop.add_reader(pipe, there.set)
    try:
        while b"\n" not in found and len(found) < LONGEST_LINE_BYTES:
            await there.wait()
            there.clear()
            if not (more := os.read(pipe, 4096)):
                return b""
            found += more
    finally:
        loop.remove_reader(pipe)
    return found.partition(b"\n")[0]
