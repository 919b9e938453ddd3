"""Envelopes on their way through an allocator: passed on as the bytes that came, large content as files."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import weakref
from pathlib import Path

from monarch_nb.config import NodePaths
from monarch_nb.errors import UsageError
from monarch_nb.proto.mail_pb2 import Address, Envelope, Notice


class Blob:
    """A file that is removed when nothing refers to it any more: every letter that needs it does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, _remove, path).atexit = False


class Blobs:
    """The blobs of a node's mail.

    Attributes:
        directory: of those that no rank has: clients of this machine read and write there.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths
        self.directory = paths.mail

    def begin(self, token: str) -> None:
        """Remove what an allocator before this one has left: nobody was told of it. A client that sees the file of this
        token sees the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700)
        (self.directory / f".{token}").touch()

    def path(self, name: str) -> Path:
        """Return where content lies; its name must be one plain file name.

        Raises:
            UsageError: it is not.
        """
        return self.directory / _checked(name)

    def claim(self, name: str) -> Blob:
        """Own content that a client or another node has put here."""
        return Blob(self.path(name))

    def take_over(self, mesh_id: str, name: str) -> Blob:
        """Own content that a rank has written.

        Raises:
            OSError: it is not there.
        """
        path = self.directory / uuid.uuid4().hex
        (self._paths.mail_of(mesh_id) / _checked(name)).rename(path)
        return Blob(path)

    def give(self, blob: Blob, mesh_id: str, rank: int) -> str:
        """Link content for a rank, which removes its link; return the name.

        Raises:
            OSError: it can not be linked.
        """
        name = f"{rank}-received-{uuid.uuid4().hex}"
        directory = self._paths.mail_of(mesh_id)
        directory.mkdir(mode=0o700, exist_ok=True)
        os.link(blob.path, directory / name)
        return name

    def lend(self, blob: Blob) -> str:
        """Link content for a client, which removes its link or has it removed; return the name.

        Raises:
            OSError: it can not be linked.
        """
        name = uuid.uuid4().hex
        os.link(blob.path, self.directory / name)
        return name

    def forget_rank(self, mesh_id: str, rank: int) -> None:
        """A rank has ended: nobody reads what it was given."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._paths.mail_of(mesh_id)):
                if name.startswith(f"{rank}-"):
                    _remove(self._paths.mail_of(mesh_id) / name)


def _checked(name: str) -> str:
    if not name or name != Path(name).name or name.startswith(".") or "\0" in name:
        raise UsageError(f"bad blob name {name!r}")
    return name


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


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


def notice(sender: Address, receiver: Address, told: Notice) -> Letter:
    """Return what tells who sent a message that it will not be answered, or that nothing comes from a node any more."""
    return Letter(Envelope(node=receiver.node, processes=[receiver.process], sender=sender, notice=told))
