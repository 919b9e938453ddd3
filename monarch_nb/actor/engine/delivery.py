"""What comes out of envelopes, for those who read them: a rank's mail thread, a client's session."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from monarch_nb.actor.engine.outside import Address
from monarch_nb.proto.mail_pb2 import Envelope, Notice
from monarch_nb.proto.run_pb2 import Death


class Receiver(Protocol):
    """What mail is for: the engine of a process, whose methods only queue what they are told."""

    def receive(self, sender: Address, body: bytes | memoryview | mmap.mmap, *, call: int, answers: int) -> None:
        """Take a message."""

    def undelivered(self, call: int, processes: Sequence[str], node: str, reason: str, death: Death | None) -> None:
        """Take note that processes will not answer a call."""

    def node_lost(self, node: str, reason: str) -> None:
        """Take note that nothing comes from a node any more."""


def deliver(envelope: Envelope, receiver: Receiver, content: bytes | memoryview | mmap.mmap | None = None) -> None:
    """Give a receiver what is in an envelope.

    Args:
        content: its body, when that was not in the envelope itself.
    """
    sender = Address(envelope.sender.node, envelope.sender.process)
    if envelope.HasField("notice"):
        _tell(sender.node, envelope.notice, receiver)
    else:
        body = envelope.body if content is None else content
        receiver.receive(sender, body, call=envelope.call, answers=envelope.answers)


def _tell(node: str, notice: Notice, receiver: Receiver) -> None:
    if notice.HasField("node_lost"):
        receiver.node_lost(notice.node_lost.node, notice.node_lost.reason)
        return
    told = notice.undelivered
    death = told.death if told.HasField("death") else None
    receiver.undelivered(told.call, list(told.processes), node, told.reason, death)


def map_and_remove(path: Path) -> mmap.mmap:
    """Map the file of large content, copied where it is written to; the file is gone from here on.

    Raises:
        OSError: it is not there.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    finally:
        path.unlink(missing_ok=True)
