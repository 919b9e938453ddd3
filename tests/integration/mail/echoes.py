"""Mail without the engine of actors: ranks that answer with what they get, and a client that notes what comes."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from dataclasses import dataclass

from integration.live import TIMEOUT_S
from monarch_nb.actor.engine.outside import Address
from monarch_nb.client.connections.bridge import call as on_loop
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.mail import own_mailbox
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.proto.run_pb2 import Death

IN_RANKS = """
import os, queue, threading
from integration.live import TIMEOUT_S
from monarch_nb.actor.engine.outside import Address

post = next(thread for thread in threading.enumerate() if thread.name == "monarch_nb-control")._post
came, heard = queue.Queue(), queue.Queue()

class Echo:
    seen, deaf = 0, False
    def receive(self, sender, body, *, call, answers):
        self.seen += 1
        if answers:
            came.put((sender, bytes(body[:20]), answers))
        elif self.deaf:
            heard.put(call)
        elif call:
            post.send(sender.node, [sender.process], [body], answers=call)
    def undelivered(self, call, processes, node, reason, death):
        came.put((call, processes, node, reason, death))
    def node_lost(self, node, reason):
        came.put((node, reason))

echo = Echo()
post._find_receiver = lambda: echo
"""


@dataclass(frozen=True)
class Message:
    sender: Address
    body: bytes
    call: int
    answers: int


@dataclass(frozen=True)
class Refused:
    call: int
    processes: list[str]
    reason: str
    death: Death | None


@dataclass(frozen=True)
class Lost:
    node: str
    reason: str


class Caller:
    """This process, as one that sends messages and gets some."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.came: queue.Queue[Message | Refused | Lost] = queue.Queue()
        self._numbers = itertools.count(1)
        for connection in mesh.core.connections.values():
            on_loop(self._open(connection))

    async def _open(self, connection: Connection) -> None:
        connection.mail.open(self)

    def receive(self, sender: Address, body: bytes, *, call: int, answers: int) -> None:
        self.came.put(Message(sender, body, call, answers))

    def undelivered(self, call: int, processes: Sequence[str], node: str, reason: str, death: Death | None) -> None:
        self.came.put(Refused(call, list(processes), reason, death))

    def node_lost(self, node: str, reason: str) -> None:
        self.came.put(Lost(node, reason))

    def address(self, rank: int) -> Address:
        return Address(self.mesh.core.connection_of(rank).address, f"{self.mesh.core.mesh_id}/{rank}")

    def home(self, rank: int) -> Address:
        """Return what this process is called on a rank's node."""
        return Address(self.address(rank).node, own_mailbox())

    def cast(self, ranks: Sequence[int], body: bytes) -> None:
        """Send a message to ranks of one node."""
        self._send(ranks, body)

    def call(self, ranks: Sequence[int], body: bytes) -> int:
        """The same, to be answered; return its number."""
        number = next(self._numbers)
        self._send(ranks, body, number)
        return number

    def _send(self, ranks: Sequence[int], body: bytes, number: int = 0) -> None:
        mail = self.mesh.core.connection_of(ranks[0]).mail
        mail.send([self.address(rank).process for rank in ranks], [body], call=number)

    def next(self) -> Message | Refused | Lost:
        """Return what comes next."""
        return self.came.get(timeout=TIMEOUT_S)

    def answer(self) -> Message:
        """Return the next answer."""
        came = self.next()
        assert isinstance(came, Message), came
        return came
