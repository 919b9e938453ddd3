"""Which directory of the ranks is meant by that of a save: one that outlives the reservation."""

from __future__ import annotations

import os
from typing import Protocol

from monarch_nb.errors import UsageError


class Copies(Protocol):
    """The files of a reservation, as this needs them."""

    @property
    def copies(self) -> bool: ...


class Place(Protocol):
    """A reservation, as this needs it.

    Attributes:
        shared: the path of storage that all nodes see; empty when none was named.
    """

    shared: str

    @property
    def files(self) -> Copies: ...


def directory_of_saves(reservation: Place, directory: str | os.PathLike[str]) -> str:
    """Return the absolute path, on the ranks, of a directory of saves.

    A relative one is the notebook's own where nodes see it. Where nodes have copies of the notebook's files, which go
    with the reservation, it is one of the shared storage.

    Raises:
        UsageError: there is no storage that outlives the reservation.
    """
    path = os.path.expanduser(directory)
    if os.path.isabs(path):
        return os.path.normpath(path)
    if not reservation.files.copies:
        return os.path.abspath(path)
    if reservation.shared:
        return os.path.normpath(os.path.join(reservation.shared, path))
    raise UsageError(
        f"{path}: nodes have copies of the notebook's files, which go with the reservation. Name a directory on "
        f"storage that all nodes see, as in /data/me/{path}, or name that storage (%mesh reserve … --shared /data/me). "
        "Without such storage, --bring keeps the save on this computer"
    )
