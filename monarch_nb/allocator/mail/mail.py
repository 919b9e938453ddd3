"""The mail of a node: from and to its ranks, its clients and other nodes, and what delivers it to them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monarch_nb.allocator.mail.letters import Blobs, Letter
from monarch_nb.allocator.mail.peers import BROKEN, Peers
from monarch_nb.allocator.mail.post_office import PostOffice
from monarch_nb.config import NodePaths, gap
from monarch_nb.deaths import describe_death
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope, Undelivered
from monarch_nb.rpc.frame_connection import FrameConnection

if TYPE_CHECKING:
    from monarch_nb.allocator.processes.supervisor import RankProcess
    from monarch_nb.allocator.runs.sessions import Session
    from monarch_nb.allocator.state.state import Identity, NodeState
    from monarch_nb.proto.run_pb2 import Death
    from monarch_nb.rpc.channel import OpenChannel


class ClientBox:
    """Delivers to a client what comes in one turn of the loop at once.

    Args:
        connection: what ends when the client does not read any more: its session, or its connection for mail.
    """

    def __init__(self, connection: Session | Visit, blobs: Blobs) -> None:
        self.connection, self._blobs = connection, blobs
        self._gathered: list[Letter] = []
        self._lent: list[str] = []

    def put(self, letter: Letter) -> None:
        """Send it soon."""
        if letter.blob is not None:
            self._lent.append(self._blobs.lend(letter.blob))
            letter = Letter(letter.naming(self._lent[-1]))
        self._gathered.append(letter)
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        self.connection.send_mail(gathered)

    def close(self) -> None:
        """The connection has ended: what the client has not read is not read any more."""
        for name in self._lent:
            with contextlib.suppress(FileNotFoundError):
                self._blobs.path(name).unlink()


_log = logging.getLogger(__name__)

CLIENT_WAIT_S = gap(10.0)
"""So long letters wait for a client whose session broke, or that was with the allocator before this one."""
_REPLACED = "it was restarted, or ended because nobody needs it any more, while the message was under way"
_AWAY = "the connection to the client broke while the call waited"
_LEFT = "the client is gone: its kernel or script has ended"
CLIENT = "client"
"""The mesh of clients, as it were."""
MAX_GONE = 1000


class Mail:
    """Carries mail.

    Args:
        paths: of the node. identity: who sends to it knows it by its address.
        state: knows which ranks are being started, and how others died.
        open_channel, certificate: as of Peers.

    Attributes:
        blobs: the files of large content.
    """

    def __init__(
        self,
        paths: NodePaths,
        identity: Identity,
        state: NodeState,
        open_channel: OpenChannel,
        certificate: Callable[[], object] = lambda: None,
    ) -> None:
        self._identity, self._state = identity, state
        self.blobs = Blobs(paths)
        self._peers = Peers(open_channel, certificate, self.node_is_lost, self.refuse)
        self._office = PostOffice(identity.address, self._forward, self._why_missing)
        self._boxes: dict[str, ClientBox] = {}
        """Of clients, by their addresses here."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._gone: dict[str, None] = {}
        """Clients that did not come back, oldest first."""
        self._socket = paths.mail_socket
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Begin with nothing."""
        self.blobs.begin(self._identity.token)

    async def listen(self) -> None:
        """Let clients of this machine in."""
        if not self._identity.isolated:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Visit(self).connection, str(self._socket))

    async def close(self) -> None:
        """Carry nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
        await self._peers.close()

    # ---- ranks ----

    def rank_is_there(self, process: RankProcess) -> None:
        """A rank takes mail from now on; what it sends may come already."""
        self._office.opened(process.address, functools.partial(self._give, process))

    def _give(self, process: RankProcess, letter: Letter) -> None:
        """Send a letter to a rank: a small one as the bytes that came, a large one with a link to its content."""
        if letter.blob is None:
            process.link.mail.send(letter.encoded)
        else:
            name = self.blobs.give(letter.blob, process.home_id, process.rank)
            process.link.mail.send(letter.naming(name).SerializeToString())

    def rank_is_gone(self, process: RankProcess, death: Death | None = None) -> None:
        """A rank has ended, or is about to: then `death` is None."""
        if death is None:
            reason = f"{_title(process.address)} on {self._identity.node_id}: {_REPLACED}"
        else:
            reason = f"{_title(process.address)} on {self._identity.node_id} died: {describe_death(death)}"
        self._office.ended(process.address, reason, death)
        self.blobs.forget_rank(process.home_id, process.rank)

    def mesh_is_gone(self, mesh_id: str, reason: str) -> None:
        """A mesh is released or stopped."""
        self._office.ended_all(f"{mesh_id}/", reason)

    def on_rank_mail(self, process: RankProcess, frame: bytes) -> None:
        """A rank sends something."""
        try:
            envelope = Envelope.FromString(frame)
        except DecodeError:
            _log.warning("%s sent bytes that are no message", process.address)
            return
        try:
            blob = self.blobs.take_over(process.home_id, envelope.blob) if envelope.blob else None
            self._office.post(Letter(envelope, frame, blob))
        except (MonarchNbError, OSError) as error:
            self.refuse(envelope, error)

    def _why_missing(self, process: str) -> Undelivered | None:
        """Say why a process is not there, unless it will be soon."""
        mesh_id, _, rank = process.rpartition("/")
        if mesh_id == CLIENT:
            if process in self._gone:
                return Undelivered(reason=_LEFT)
            self._wait_for_client(process)
            return None
        here = self._identity.node_id
        mesh = self._state.meshes.get(mesh_id)
        if mesh is None:
            reason = f"{_title(process)} is not on {here}: its mesh was released or stopped"
            return Undelivered(reason=reason)
        slot = mesh.ranks.get(int(rank)) if rank.isdecimal() else None
        if slot is None:
            return Undelivered(reason=f"{_title(process)} is not on {here}")
        if slot.death is not None:
            reason = f"{_title(process)} on {here} has died: {describe_death(slot.death)}"
            return Undelivered(reason=reason, death=slot.death)
        return None

    # ---- clients ----

    def open_mailbox(self, mailbox: str, connection: Session | Visit) -> None:
        """A client takes mail; see ClientBox."""
        if before := self._boxes.pop(mailbox, None):  # of a session that has broken, as far as the client knows
            before.close()
            self._office.ended(mailbox, _AWAY)
        if timer := self._timers.pop(mailbox, None):
            timer.cancel()
        self._gone.pop(mailbox, None)
        box = self._boxes[mailbox] = ClientBox(connection, self.blobs)
        self._office.opened(mailbox, box.put)

    def close_mailbox(self, connection: Session | Visit) -> None:
        """The connection to a client has ended. It may come back: what is sent to it waits a little."""
        for mailbox, box in list(self._boxes.items()):
            if box.connection is connection:
                self._boxes.pop(mailbox).close()
                self._office.ended(mailbox, _AWAY)
                self._wait_for_client(mailbox)

    def _wait_for_client(self, mailbox: str) -> None:
        self._office.held(mailbox)
        self._timers[mailbox] = asyncio.get_running_loop().call_later(CLIENT_WAIT_S, self._give_client_up, mailbox)

    def _give_client_up(self, mailbox: str) -> None:
        del self._timers[mailbox]
        self._gone[mailbox] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._office.ended(mailbox, _LEFT)

    def accept(self, envelopes: Iterable[Envelope], *, from_node: bool = False) -> None:
        """A client or another node sends something."""
        for envelope in envelopes:
            self._accept(envelope, b"", from_node=from_node)

    def accept_frame(self, frame: bytes) -> None:
        """A client sends something on its connection for mail. Raises DecodeError when that is no envelope."""
        self._accept(Envelope.FromString(frame), frame, from_node=False)

    def _accept(self, envelope: Envelope, encoded: bytes, *, from_node: bool) -> None:
        try:
            blob = self.blobs.claim(envelope.blob) if envelope.blob else None
            self._office.post(Letter(envelope, encoded, blob), from_node=from_node)
        except (MonarchNbError, OSError) as error:
            self.refuse(envelope, error)

    def refuse(self, envelope: Envelope, error: Exception) -> None:
        """Tell the sender why something is not delivered."""
        self._office.returned(envelope, f"{self._identity.node_id} can not deliver the message: {error}")

    # ---- other nodes ----

    def _forward(self, node: str, letter: Letter) -> None:
        self._peers.send(node, self._owner_of(node, letter.envelope), letter)

    def _owner_of(self, node: str, envelope: Envelope) -> str:
        """Return whose reservation a letter to another node is about."""
        leases = self._state.leases
        for process in (envelope.sender.process, *envelope.processes[:1]):
            mesh = self._state.meshes.get(process.rpartition("/")[0])
            if mesh is not None and (lease := leases.get(mesh.spec.reservation_id)):
                return lease.request.owner
        of_both = (lease for lease in leases.values() if lease.number_of(node) is not None)
        return next((lease.request.owner for lease in of_both), "")

    def node_is_lost(self, node: str, reason: str = BROKEN) -> None:
        """Letters to another node, or from there, may be lost."""
        self._office.node_lost(node, reason)


def _title(process: str) -> str:
    """Return "rank 3"."""
    return f"rank {process.rpartition('/')[2]}"


class Visit:
    """A connection for mail alone, of a client of this machine: a round trip takes two thirds of the time that it takes
    on a session. Its first frame says who it is."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._is_known = False
        self.connection = FrameConnection(self._on_frame, self._on_lost)

    def _on_frame(self, frame: bytes) -> None:
        try:
            if self._is_known:
                self._mail.accept_frame(frame)
            else:
                self._is_known = True
                self._mail.open_mailbox(pb.Open.FromString(frame).mailbox, self)
        except DecodeError:
            _log.warning("a client sent bytes that are no message")
            self.connection.close()

    def send_mail(self, letters: Iterable[Letter]) -> None:
        """Send letters."""
        self.connection.send(*(letter.encoded for letter in letters))

    def _on_lost(self) -> None:
        self._mail.close_mailbox(self)
