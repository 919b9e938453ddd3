"""The file of an identity, read again when it was replaced: renewed certificates need no restart."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from monarch_nb.errors import TrustError
from monarch_nb.trust.identity import Identity, load_identity


class IdentityFile:
    """An identity as its file has it now. Any thread may ask.

    Args:
        path: of the file.

    Example:
        >>> IdentityFile(paths.identity).newest().name  # doctest: +SKIP
        'alice'
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], Identity] | None = None

    def newest(self) -> Identity:
        """Return the identity; when its file has been spoilt meanwhile, what it was before.

        Raises:
            TrustError: the file is not there or can not be read, and never could.
        """
        before = self._read
        try:
            facts = os.stat(self._path)
            state = facts.st_mtime_ns, facts.st_ino
            if before is None or before[0] != state:
                self._read = state, load_identity(self._path)
        except (OSError, TrustError):
            if before is None:
                load_identity(self._path)
                raise
        assert self._read is not None
        return self._read[1]


def newest_of(identity: Identity) -> Identity:
    """Return an identity as its file has it now; as it is when it is of no file, or that can not be used."""
    if identity.source is None:
        return identity
    try:
        return _file_at(identity.source).newest()
    except (OSError, TrustError):
        return identity


@functools.cache
def _file_at(path: Path) -> IdentityFile:
    return IdentityFile(path)
