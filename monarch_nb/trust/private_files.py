"""Files that only this user reads: written whole or not at all, refused when others could have read them."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monarch_nb.errors import TrustError

LARGEST_BYTES = 16 << 20
"""No file of a pool is near that; what is larger is something else."""


def create_private(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, for this user alone.

    Raises:
        FileExistsError: it is there already. OSError: it can not be written; nothing is left.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file, or replace one, for this user alone; readers see the old content or the new one.

    Raises:
        TrustError: it can not be written; what was there is as it was.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        create_private(new, content)
        try:
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TrustError(f"can not write {path}: {error.strerror}") from error


def read_private(path: Path) -> bytes:
    """Return a file's content.

    Raises:
        FileNotFoundError: it is not there.
        TrustError: others can read it, it is another user's, or it can not be read.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid not in (os.getuid(), 0):
                raise TrustError(f"{path} is another user's")
            content = file.read(LARGEST_BYTES + 1)
            if facts.st_mode & ~_allowed(facts) & 0o077:
                raise TrustError(_open_to_others(path, content))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrustError(f"can not read {path}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise TrustError(f"{path} is too large to be a file of a pool")
    return content


def _allowed(facts: os.stat_result) -> int:
    """Return who else may read a file: the group of this process, of one that root has put there, as in containers that
    do not run as root."""
    by_root = facts.st_uid == 0 and os.getuid() != 0 and facts.st_gid == os.getegid()
    return stat.S_IRGRP if by_root else 0


def _open_to_others(path: Path, content: bytes) -> str:
    """Return what is wrong with a file that others can read; nobody is told to close one that is none of a pool's."""
    if b"PRIVATE KEY" in content or b"CERTIFICATE" in content or path.suffix in (".json", ".key", ".pem"):
        return f"others can read or change {path}: run chmod 600 {path}"
    return f"{path} is no file that monarch-nb pool makes"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time changes what lies in a directory; waiting can be interrupted."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
