"""Large content of a rank's mail: files in a directory that it shares with its allocator."""

import mmap
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from monarch_nb.actor.engine.delivery import map_and_remove
from monarch_nb.files.pieces import write_pieces

SENT = "sent"


class MailBlobs:
    """The blobs of one rank.

    Args:
        directory: of the mesh, on this node. It is made when first needed.
        rank: its files are those whose names begin with it.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory, self._rank = directory, rank

    def write(self, pieces: Sequence[bytes | memoryview]) -> str:
        """Write content that is to be sent; return its name.

        Raises:
            OSError: it can not be written; nothing is left behind.
        """
        name = f"{self._rank}-{SENT}-{uuid.uuid4().hex}"
        self._directory.mkdir(mode=0o700, exist_ok=True)
        write_pieces(self._directory / name, pieces)
        return name

    def take(self, name: str) -> mmap.mmap:
        """Map content that was received, privately; its file is gone from here on.

        Raises:
            OSError: it is not there.
        """
        return map_and_remove(self._directory / name)

    def remove(self, name: str) -> None:
        """Content will not be sent."""
        (self._directory / name).unlink(missing_ok=True)

    def remove_others(self, kept: set[str]) -> None:
        """Remove all files of this rank but `kept`: an allocator that ended has left them."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(f"{self._rank}-") and name not in kept:
                self.remove(name)
