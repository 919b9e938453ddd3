"""Directories of one process, for cookies and sockets: they end with it, and those of processes that were killed are
removed by the next that makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress


class OwnDirectory:
    """A directory that only this user can enter, locked as long as this process uses it.

    It is removed at the latest when the process ends; if that is killed, its lock ends with it.

    Args:
        prefix: how its name begins, the same for all of a kind: those of a kind that nobody locks are removed.
        parent: where it is made.

    Attributes:
        path: of the directory.

    Raises:
        OSError: it can not be made.

    Example:
        >>> directory = OwnDirectory("monarch-nb-example-", tempfile.gettempdir())
        >>> directory.remove()
    """

    def __init__(self, prefix: str, parent: str) -> None:
        for name in os.listdir(parent):
            if name.startswith(prefix):
                _remove_if_left(os.path.join(parent, name))
        self.path, lock = _made(prefix, parent)
        self._removal = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it with all that is in it."""
        self._removal()


def _made(prefix: str, parent: str) -> tuple[str, int]:
    """Make a directory; return it with a descriptor of it that holds its lock."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        with suppress(FileNotFoundError):  # another process has found it before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system that knows no locks: then nobody can get this one
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(path):
                return path, lock
            os.close(lock)


def _remove_if_left(path: str) -> None:
    with suppress(OSError):  # another's, or gone by now
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _remove(path: str, lock: int, made_by: int) -> None:
    if os.getpid() == made_by:  # and not a process that was forked since, which ends earlier
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
