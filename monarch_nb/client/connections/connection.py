"""A client's connection to one node: unary calls, and the session stream that comes back after every break."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from monarch_nb.config import cadence, gap, patience

from monarch_nb.rpc.channel import has_place, is_deserted, is_local, open_channel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb import config
from monarch_nb.client.connections.listeners import ReservationListener
from monarch_nb.client.connections.mail import ConnectionMail
from monarch_nb.errors import TrustError, VersionMismatch
from monarch_nb.ground.namespaces import pid_namespace
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.renewed_channel import RenewedChannel
from monarch_nb.rpc.status import error_from_json, is_refusal, translate
from monarch_nb.trust.identity import check_time
from monarch_nb.trust.identity_file import newest_of

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

_log = logging.getLogger(__name__)

SPAWN_TIMEOUT_S = patience(300.0)
FIRST_RETRY_S = cadence(0.05)
LONGEST_RETRY_S = cadence(1.0)
OPEN_S = cadence(15.0)
"""A session that is not open after this time is asked for anew: whatever has become of it, nobody tells."""
GAP_S = gap(2.0)
"""So long a node may be away and nothing is lost or refused: its allocator is being started again."""
ALLOCATOR_DOWN = "does not answer; its ranks are as they were: monarch-nb up starts its allocator again"
"""What is said of a node of this machine that does not answer."""
POOL_DOWN = "the pool was taken down; its ranks are gone: %mesh reserve makes new ones"
"""What is said instead when the node's files are gone, too."""
LINGER_S = gap(1.0)
"""So long a session stays that nobody needs: somebody may be about to."""


class Connection:
    """One node. Make and use it on the background loop only.

    Args:
        name: of the node, for messages.
        address: where we reach it, as gRPC writes it.
        identity: who we are, for a node of a network.

    Attributes:
        node_address: where other nodes reach it; what tells it from them in messages between processes.
        client_id: of its session; `Open.client_id`.
        up: whether the session stream is open.
        mail: messages to and from processes of the node.
        members_listeners: by reservation id, who is told when other nodes have places of it.
    """

    def __init__(self, name: str, address: str, identity: Identity | None = None) -> None:
        self.name, self.address, self.identity = name, address, identity
        self.node_address = address
        self._channel = RenewedChannel(lambda: open_channel(address, self.identity), lambda: self.identity)
        self.client_id = uuid.uuid4().hex
        self._outgoing: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self._session: asyncio.Task[None] | None = None
        self.up = False
        self._opened = asyncio.Event()
        self._away_since, self._away_at, self._was_lost = time.monotonic(), time.localtime(), False
        self._attached: dict[str, list[ReservationListener]] = {}
        self.members_listeners: dict[str, set[ReservationListener]] = {}
        self.mail = ConnectionMail(self, self._outgoing_mail)
        self._holders = 0

    def is_known_as(self, name: str, node_address: str) -> None:
        """The node has said what it is called, and where other nodes reach it."""
        self.name, self.node_address = name, node_address

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_local(self.address)

    @property
    def since(self) -> str:
        """Since when it does not answer, after a blank: " since 14:03:05"; empty when nobody has looked, or it does."""
        has_looked = (self._session is not None or self._was_lost) and not self.up
        return f" since {time.strftime('%H:%M:%S', self._away_at)}" if has_looked else ""

    @property
    def absence(self) -> str:
        """What there is to say of a node that does not answer. What helps elsewhere, `silence.way_on` says."""
        if not self.is_local:
            return f"{self.name} unreachable{self.since}"
        return f"{self.name} {ALLOCATOR_DOWN}" if has_place(self.address) else POOL_DOWN

    def lost(self) -> None:
        """Another node, which looks after this one, has found that it does not answer any more."""
        self._away_since, self._away_at, self._was_lost = time.monotonic(), time.localtime(), True

    def open_session(self) -> Any:
        """Open one more session, for those who look after its failures themselves.

        Raises:
            TrustError: our certificate has expired.
        """
        return self._renewed().Session()

    def _renewed(self) -> Any:
        """Return the stub for calls as who we are now: our certificate may have been replaced since we began.

        Raises:
            TrustError: it has expired.
        """
        if self.identity is not None:
            self.identity = newest_of(self.identity)
            check_time(self.identity.facts, time.time(), str(self.identity.source or "use"))
        return self._channel.renew().stub

    # ---- unary calls ----

    async def unary(self, method: str, request: Any, timeout_s: float = patience(30.0)) -> Any:
        """Call a method; a failure raises an error of monarch_nb."""
        stub = await self._settle()
        try:
            return await getattr(stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.name, self.address) from None

    async def _settle(self) -> Any:
        """Return the stub for a call. A channel that could not connect waits before it tries again, and calls fail at
        once meanwhile, although the allocator may be back: let it try."""
        stub, channel = self._renewed(), self._channel.channel
        unsettled = {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.CONNECTING}
        state = channel.get_state(try_to_connect=True)
        if state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE or is_deserted(self.address):
            return stub
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(gap(1.0)):
                while state in unsettled:
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
                    unsettled = {grpc.ChannelConnectivity.CONNECTING}  # one try
        return stub

    async def describe(self, timeout_s: float = patience(5.0)) -> pb.DescribeReply:
        """Ask for the node's facts; the version handshake."""
        request = pb.DescribeRequest(protocol=config.PROTOCOL, client_version=config.VERSION)
        reply: pb.DescribeReply = await self.unary("Describe", request, timeout_s)
        return reply

    async def check(self) -> None:
        """Return if the node answers. One that has just gone away has the time to start an allocator.

        Raises:
            NodeUnreachable: it does not answer.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._away_since + GAP_S - time.monotonic())):
                await self._opened.wait()
                return
        await self.describe()  # it may have come back just now

    async def stream(self, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """Call a method that streams its reply."""
        stub = await self._settle()
        call = getattr(stub, method)(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.name, self.address) from None
        finally:
            call.cancel()

    async def send_stream(self, method: str, messages: AsyncIterator[Any], timeout_s: float) -> Any:
        """Call a method with a stream of messages. Raises an error of monarch_nb, or what `messages` raised."""
        stub = await self._settle()
        raised: list[Exception] = []

        async def guarded() -> AsyncIterator[Any]:
            try:
                async for message in messages:
                    yield message
            except Exception as error:  # gRPC would only cancel the call
                raised.append(error)
                raise

        try:
            return await getattr(stub, method)(guarded(), timeout=timeout_s)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            if raised:
                raise raised[0] from None
            if isinstance(error, grpc.aio.AioRpcError):
                raise translate(error, self.name, self.address) from None
            raise

    async def put_blob(self, mesh_id: str, blob: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Send a blob in chunks."""

        async def chunks() -> AsyncIterator[pb.BlobChunk]:
            yield pb.BlobChunk(mesh_id=mesh_id, blob=blob)
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for start in range(0, len(view), config.CHUNK_BYTES):
                    yield pb.BlobChunk(data=bytes(view[start : start + config.CHUNK_BYTES]))

        stub = await self._settle()
        try:
            await stub.PutBlob(chunks())
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.name, self.address) from None

    async def read_blob(self, mesh_id: str, blob: str) -> bytes:
        """Fetch a blob."""
        request = pb.ReadBlobRequest(mesh_id=mesh_id, blob=blob)
        return b"".join([chunk.data async for chunk in self.stream("ReadBlob", request)])

    # ---- the session ----

    def attach(self, reservation_id: str, listener: ReservationListener) -> None:
        """Use a reservation, as far as the node is concerned, until `detach`."""
        self._attached.setdefault(reservation_id, []).append(listener)
        self._outgoing.put_nowait(_attach(reservation_id, listener))
        self.ensure_session()

    def detach(self, reservation_id: str, listener: ReservationListener) -> None:
        """Use a reservation no longer, unless others of this process do."""
        listeners = self._attached[reservation_id]
        listeners.remove(listener)
        if not listeners:
            del self._attached[reservation_id]
            # Also while the session is being opened: the attach before it is on its way.
            self._outgoing.put_nowait(pb.SessionRequest(detach=pb.Detach(reservation_id=reservation_id)))

    def ensure_session(self) -> None:
        """Open the session stream if there is none."""
        if self._session is None or self._session.done():
            self._session = asyncio.get_running_loop().create_task(self._keep_session())

    def hold_session(self) -> None:
        """Have a session, until `let_go` is called as often."""
        self._holders += 1
        self.ensure_session()

    def let_go(self) -> None:
        """The session need not be held any more: it ends soon unless it is needed for something else."""
        self._holders -= 1
        self.rest()

    def rest(self) -> None:
        """Somebody needs the session no longer: it ends soon, unless somebody else does."""
        asyncio.get_running_loop().call_later(LINGER_S, self._end_idle_session)

    def _end_idle_session(self) -> None:
        is_needed = self._holders or self._attached or self.mail.is_taken
        if self._session is not None and not is_needed:
            self._session.cancel()
            self._session, self.up = None, False
            self._opened.clear()
            self.mail.close()  # the next session opens the mailbox anew: mail from none is not delivered

    async def _keep_session(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                stub, shown = self._renewed(), self.identity
                async for _ in self._one_session(stub):
                    retry_s = FIRST_RETRY_S
            except grpc.aio.AioRpcError as error:
                refusal = translate(error, self.name, self.address)
                if is_refusal(refusal) and (shown is None or shown == newest_of(shown)):
                    self._be_refused()
                    return
            except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            except (VersionMismatch, TrustError):
                self._be_refused()
                return
            self._set_up(False)
            await asyncio.sleep(retry_s)  # nothing tells when an allocator comes back
            retry_s = min(LONGEST_RETRY_S, 2 * retry_s)

    async def _one_session(self, stub: Any) -> AsyncIterator[None]:
        """One stream, from open to break; yields once when the node has answered."""
        stream = stub.Session(wait_for_ready=True)
        self._outgoing = asyncio.Queue()
        self._outgoing.put_nowait(self._opening())
        for reservation_id, listeners in self._attached.items():
            self._outgoing.put_nowait(_attach(reservation_id, listeners[-1]))
        writer = asyncio.create_task(self._write(stream))
        try:
            while (batch := await self._read(stream)) is not grpc.aio.EOF:
                for event in batch.events:
                    if event.HasField("opened"):
                        self._set_up(True)
                        self.mail.on_opened(event.opened)
                        yield
                    else:
                        self._take_in(event)
        finally:
            writer.cancel()
            stream.cancel()

    async def _read(self, stream: Any) -> Any:
        """Return what comes next. Raises TimeoutError when the node does not open the session."""
        if self.up:
            return await stream.read()
        async with asyncio.timeout(OPEN_S):
            return await stream.read()

    def _opening(self) -> pb.SessionRequest:
        return pb.SessionRequest(open=self.opening())

    def opening(self, mailbox: str = "") -> pb.Open:
        """Return what says who this client is.

        Args:
            mailbox: see `Open.mailbox`.
        """
        return pb.Open(
            protocol=config.PROTOCOL,
            client_id=self.client_id,
            mailbox=mailbox,
            pid=os.getpid(),
            pid_namespace=pid_namespace(),
        )

    def _outgoing_mail(self, request: pb.SessionRequest) -> None:
        self._outgoing.put_nowait(request)

    async def _write(self, stream: Any) -> None:
        try:
            while True:
                await stream.write(await self._outgoing.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            stream.cancel()

    def _set_up(self, up: bool) -> None:
        if self.up == up:
            return
        self.up = up
        if up:
            self._opened.set()
        else:
            self._opened.clear()
            self._away_since, self._away_at = time.monotonic(), time.localtime()
            self.mail.on_lost()

    def _take_in(self, event: pb.SessionEvent) -> None:
        try:
            self._dispatch(event)
        except VersionMismatch:
            raise
        except Exception:  # noqa: BLE001 (else the session would end, and nobody would hear of any run again)
            _log.exception("%s said what can not be taken in", self.name)

    def _dispatch(self, event: pb.SessionEvent) -> None:
        kind = event.WhichOneof("message")
        if kind == "time_left":
            for told in list(self._attached.get(event.time_left.reservation_id, ())):
                told.on_time_left(event.time_left)
            return
        if kind == "mail":
            self.mail.on_mail(event.mail.envelopes)
            return
        if kind == "files_changed":
            for told in list(self._attached.get(event.files_changed.reservation_id, ())):
                told.on_files_changed(event.files_changed)
            return
        if kind == "in_line":
            for told in list(self._attached.get(event.in_line.reservation_id, ())):
                told.on_line(event.in_line)
            return
        if kind == "members_changed":
            for told in list(self.members_listeners.get(event.members_changed.reservation_id, ())):
                told.on_members_changed(event.members_changed)
            return
        if kind == "refused" and isinstance(error := error_from_json(event.refused.error_json), VersionMismatch):
            raise error

    def _be_refused(self) -> None:
        """The node does not talk with us, and will not when it is asked again."""
        self._set_up(False)
        self._away_since -= GAP_S  # who asks whether it is back is told at once

    async def flush(self) -> None:
        """Send what waits to be sent, before the process ends."""
        while self.up and not self._outgoing.empty():
            await asyncio.sleep(0.001)  # bounded by the caller; the process is ending

    async def close(self) -> None:
        """Close the session and the channel."""
        self.mail.close()
        if self._session is not None:
            self._session.cancel()
            await asyncio.wait([self._session])
            self._session = None  # else its call, and so the socket, would stay until garbage is collected
        await self._channel.close()


def _attach(reservation_id: str, listener: ReservationListener) -> pb.SessionRequest:
    return pb.SessionRequest(attach=pb.Attach(reservation_id=reservation_id, notebook=listener.notebook))
