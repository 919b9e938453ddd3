"""Envelopes on their way through an allocator, which passes them on as the bytes that came."""

from __future__ import annotations

from monarch_nb.allocator.mail.blobs import Blob
from monarch_nb.proto.mail_pb2 import Address, Envelope, NodeLost, Notice, Undelivered


class Letter:
    """An envelope.

    Args:
        encoded: it as bytes, where these are there already.
        blob: its content, when that is a file: kept as long as a letter needs it.
    """

    __slots__ = ("_encoded", "blob", "envelope")

    def __init__(self, envelope: Envelope, encoded: bytes = b"", blob: Blob | None = None) -> None:
        self.envelope, self.blob = envelope, blob
        self._encoded = encoded

    @property
    def encoded(self) -> bytes:
        """The envelope as bytes."""
        if not self._encoded:
            self._encoded = self.envelope.SerializeToString()
        return self._encoded

    def naming(self, blob: str) -> Envelope:
        """Return the envelope with another name of its content."""
        renamed = Envelope()
        renamed.CopyFrom(self.envelope)
        renamed.blob = blob
        return renamed


def undelivered(sender: Address, receiver: Address, told: Undelivered) -> Letter:
    """Return what tells who sent a message that it will not be answered."""
    return _notice(sender, receiver, Notice(undelivered=told))


def node_lost(sender: Address, receiver: Address, told: NodeLost) -> Letter:
    """Return what tells a process that nothing comes from a node any more."""
    return _notice(sender, receiver, Notice(node_lost=told))


def _notice(sender: Address, receiver: Address, notice: Notice) -> Letter:
    return Letter(Envelope(node=receiver.node, processes=[receiver.process], sender=sender, notice=notice))
