"""A client's connection to one node: unary calls, and the session stream that comes back after every break."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from monarch_nb.config import cadence, gap, patience

from monarch_nb.rpc.channel import is_deserted, is_local, open_channel  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb import config
from monarch_nb.branches.alike import ranks_of
from monarch_nb.client.connections.listeners import Followed, ReservationListener, RunListener, drop_cancels
from monarch_nb.client.connections.mail import ConnectionMail
from monarch_nb.errors import MonarchNbError, TrustError, VersionMismatch
from monarch_nb.ground.namespaces import pid_namespace
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
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
SHOWN_INTERVAL_S = cadence(0.5)
COLLECT_DELAY_S = cadence(0.1)
LINK_PATIENCE_S = patience(0.5)
"""A session that is not open after this time will not open by itself soon: whoever waits for it is told."""
OPEN_S = cadence(15.0)
"""A session that is not open after this time is asked for anew: whatever has become of it, nobody tells."""
GAP_S = gap(2.0)
"""So long a node may be away and nothing is lost or refused: its allocator is being started again."""
ALLOCATOR_DOWN = "does not answer; its ranks are as they were: monarch-nb up starts its allocator again"
"""What is said of a node of this machine that does not answer."""
MAX_FOLLOWED = 64
"""Runs that are done and may print more."""
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
        mesh_deaths: by mesh id, what is called when one of its ranks dies on the node.
        members_listeners: by reservation id, who is told when other nodes have places of it.
    """

    def __init__(self, name: str, address: str, identity: Identity | None = None) -> None:
        self.name, self.address, self.identity = name, address, identity
        self.node_address = address
        self._channel = RenewedChannel(lambda: open_channel(address, self.identity), lambda: self.identity)
        self.client_id = uuid.uuid4().hex
        self._outgoing: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self._followed: dict[str, Followed] = {}
        self._session: asyncio.Task[None] | None = None
        self._shown: dict[str, asyncio.TimerHandle] = {}
        self._collected: list[str] = []
        self._collect_timer: asyncio.TimerHandle | None = None
        self.up = False
        self._opened = asyncio.Event()
        self._away_since, self._away_at, self._was_lost = time.monotonic(), time.localtime(), False
        self.mesh_deaths: dict[str, Callable[[pb.RankDied], None]] = {}
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
        return f"{self.name} {ALLOCATOR_DOWN}" if self.is_local else f"{self.name} unreachable{self.since}"

    def lost(self) -> None:
        """Another node, which looks after this one, has found that it does not answer any more."""
        self._away_since, self._away_at, self._was_lost = time.monotonic(), time.localtime(), True

    def again(self) -> Connection:
        """Return one more connection to the same node."""
        other = Connection(self.name, self.address, self.identity)
        other.node_address = self.node_address
        return other

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

    def submit(self, listener: RunListener, submit: pb.Submit) -> None:
        """Submit a run and follow it; sent again after a break, executed once."""
        follow = pb.Follow(mesh_id=submit.mesh_id, run_id=listener.run_id)
        self._track(Followed(listener, submit, follow))

    def follow(self, listener: RunListener, mesh_id: str, *, from_shown: bool) -> None:
        """Follow a run that another client submitted."""
        follow = pb.Follow(mesh_id=mesh_id, run_id=listener.run_id, from_shown=from_shown)
        self._track(Followed(listener, None, follow))

    def replay(self, listener: RunListener, mesh_id: str) -> None:
        """Have the output of a run sent from its beginning, which the listener did not want so far."""
        followed = self._followed.get(listener.run_id)
        if followed is None:
            self.follow(listener, mesh_id, from_shown=False)
            return
        followed.follow.cursors.clear()
        self._outgoing.put_nowait(pb.SessionRequest(follow=followed.follow))  # after the submit, if that is under way

    def _track(self, followed: Followed) -> None:
        self._forget_old()
        self._followed[followed.listener.run_id] = followed
        self._outgoing.put_nowait(followed.request())
        self.ensure_session()
        if not self.up:  # it may be opening just now
            asyncio.get_running_loop().call_later(LINK_PATIENCE_S, self._tell_if_down, followed)

    def _tell_if_down(self, followed: Followed) -> None:
        if not self.up and self._followed.get(followed.listener.run_id) is followed:
            followed.listener.on_link(self, up=False)

    def send(self, **message: Any) -> None:
        """Send a message that need not survive a break."""
        if self.up:
            self._outgoing.put_nowait(pb.SessionRequest(**message))

    def cancel(self, run_id: str) -> None:
        """Drop a run where it has not begun, and interrupt it where it runs: now, or when the node is there again."""
        self._outgoing.put_nowait(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id)))  # after the submit
        if followed := self._followed.get(run_id):
            followed.cancelled = True  # also while it is up: the link may break before this has arrived

    def withdraw_cancel(self, run_id: str) -> None:
        """Do not cancel a run when the node is there again."""
        if followed := self._followed.get(run_id):
            followed.cancelled = False
        drop_cancels(self._outgoing, run_id)

    def end_calls(self, run_id: str) -> None:
        """A run of calls is over. A node that is away now ends it by itself."""
        if followed := self._followed.get(run_id):
            followed.ended = True
        self.send(end_calls=pb.EndCalls(run_id=run_id))

    def collect(self, run_id: str) -> None:
        """Tell the node that the results of a run are here: with the next message, or soon."""
        self._collected.append(run_id)
        if self._collect_timer is None:
            self._collect_timer = asyncio.get_running_loop().call_later(COLLECT_DELAY_S, self._send_collected)

    def _send_collected(self) -> None:
        self._collect_timer = None
        if self._collected:
            self.send()  # else when the session is open again

    def _add_collected(self, request: pb.SessionRequest) -> None:
        """Put what was collected into a message that is about to be sent."""
        request.collected.extend(self._collected)
        for run_id in self._collected:
            if (followed := self._followed.get(run_id)) and followed.is_quiet:
                del self._followed[run_id]
        self._collected = []

    def _forget_old(self) -> None:
        """Late output of the newest runs is still wanted."""
        done = [run_id for run_id, followed in self._followed.items() if followed.listener.done]
        for run_id in done[:-MAX_FOLLOWED]:
            del self._followed[run_id]

    def attach(self, reservation_id: str, listener: ReservationListener) -> None:
        """Use a reservation, as far as the node is concerned, until `detach`."""
        self._attached.setdefault(reservation_id, []).append(listener)
        self._outgoing.put_nowait(pb.SessionRequest(attach=pb.Attach(reservation_id=reservation_id)))
        self.ensure_session()

    def detach(self, reservation_id: str, listener: ReservationListener) -> None:
        """Use a reservation no longer, unless others of this process do."""
        listeners = self._attached[reservation_id]
        listeners.remove(listener)
        if not listeners:
            del self._attached[reservation_id]
            # Also while the session is being opened: the attach before it is on its way.
            self._outgoing.put_nowait(pb.SessionRequest(detach=pb.Detach(reservation_id=reservation_id)))

    def forget(self, run_id: str) -> None:
        """Follow a run no longer."""
        if self._followed.pop(run_id, None):
            self.send(unfollow=pb.Unfollow(run_id=run_id))

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
        is_needed = self._holders or self._attached or self._followed or self.mesh_deaths or self.mail.is_taken
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
                    self._refuse_all(refusal)
                    return
            except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            except (VersionMismatch, TrustError) as error:
                self._refuse_all(error)
                return
            self._set_up(False)
            await asyncio.sleep(retry_s)  # nothing tells when an allocator comes back
            retry_s = min(LONGEST_RETRY_S, 2 * retry_s)

    async def _one_session(self, stub: Any) -> AsyncIterator[None]:
        """One stream, from open to break; yields once when the node has answered."""
        stream = stub.Session(wait_for_ready=True)
        self._outgoing = asyncio.Queue()
        self._outgoing.put_nowait(self._opening())
        for reservation_id in self._attached:
            self._outgoing.put_nowait(pb.SessionRequest(attach=pb.Attach(reservation_id=reservation_id)))
        for run_id, followed in self._followed.items():
            self._outgoing.put_nowait(followed.request())
            if followed.cancelled:
                self._outgoing.put_nowait(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id)))
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
                request = await self._outgoing.get()
                if self._collected and self.up:
                    self._add_collected(request)
                await stream.write(request)
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
        self._send_collected()
        for followed in list(self._followed.values()):
            if up:
                followed.cancelled = False  # it was sent with the opening
            followed.listener.on_link(self, up)

    def _take_in(self, event: pb.SessionEvent) -> None:
        try:
            self._dispatch(event)
        except VersionMismatch:
            raise
        except Exception:  # noqa: BLE001 (else the session would end, and nobody would hear of any run again)
            _log.exception("%s said what can not be taken in", self.name)

    def _dispatch(self, event: pb.SessionEvent) -> None:
        kind = event.WhichOneof("message")
        if kind == "rank_died":
            if listener := self.mesh_deaths.get(event.rank_died.mesh_id):
                listener(event.rank_died)
            return
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
        message = getattr(event, kind or "")
        followed = self._followed.get(message.run_id)
        if kind == "refused":
            self._on_refused(followed, event.refused)
        elif followed is None:
            return
        elif kind == "queued":
            followed.accepted = True
            if followed.submit is not None:  # were it to be submitted again, it would be the same
                followed.submit.run.number, followed.submit.run.output = event.queued.number, event.queued.output
            followed.listener.on_queued(self, event.queued)
        elif kind == "started":
            followed.listener.on_started(self)
        elif kind == "output":
            self._on_output(followed, event.output)
        elif kind == "finished":
            followed.listener.on_finished(self, event.finished)

    def _on_output(self, followed: Followed, output: pb.Output) -> None:
        for told in output.ranks:
            for rank, cursor in ranks_of(told):
                followed.follow.cursors[rank].CopyFrom(cursor)
        followed.follow.from_shown = False
        followed.listener.on_output(self, output)
        run_id = output.run_id
        if run_id not in self._shown and followed.listener.shows:
            loop = asyncio.get_running_loop()
            self._shown[run_id] = loop.call_later(SHOWN_INTERVAL_S, self._send_shown, run_id)

    def _send_shown(self, run_id: str) -> None:
        self._shown.pop(run_id, None)
        if followed := self._followed.get(run_id):
            self.send(shown=pb.Shown(run_id=run_id, cursors=dict(followed.follow.cursors)))

    def _on_refused(self, followed: Followed | None, refused: pb.Refused) -> None:
        error = error_from_json(refused.error_json)
        if isinstance(error, VersionMismatch) and followed is None:
            raise error
        if followed is None:
            return
        if followed.listener.done:  # it was followed for what it may print later, and is forgotten now
            del self._followed[refused.run_id]
        elif followed.accepted and followed.submit is not None:
            # The allocator died before it wrote the run down. Ranks know which runs they had.
            followed.accepted = False
            self._outgoing.put_nowait(followed.request())
            return
        followed.listener.on_refused(self, error)

    def _refuse_all(self, error: MonarchNbError) -> None:
        """The node does not talk with us, and will not when it is asked again: what waits for it is told why."""
        for followed in list(self._followed.values()):
            followed.listener.on_refused(self, error)
        self._set_up(False)
        self._away_since -= GAP_S  # who asks whether it is back is told at once

    def cursors(self, run_id: str) -> dict[int, run_pb2.Cursor]:
        """Return up to where each rank's output of a run has come."""
        followed = self._followed.get(run_id)
        return dict(followed.follow.cursors) if followed else {}

    async def flush(self) -> None:
        """Send what waits to be sent, before the process ends; runs have arrived then."""
        self._send_collected()
        while self.is_submitting or (self.up and not self._outgoing.empty()):
            await asyncio.sleep(0.001)  # bounded by the caller; the process is ending

    @property
    def is_submitting(self) -> bool:
        """Whether the node has yet to take in a run."""
        return any(
            one.submit is not None and not (one.accepted or one.listener.done) for one in self._followed.values()
        )

    async def close(self) -> None:
        """Close the session and the channel."""
        self.mail.close()
        if self._session is not None:
            self._session.cancel()
            await asyncio.wait([self._session])
            self._session = None  # else its call, and so the socket, would stay until garbage is collected
        for handle in self._shown.values():
            handle.cancel()
        await self._channel.close()


async def close_all(connections: Iterable[Connection]) -> None:
    """Close them one after the other."""
    for connection in connections:
        await connection.close()
