"""A disk that is full: how that is told, and what is said of it."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path


def lacks_room(error: OSError | sqlite3.Error) -> bool:
    """Whether a disk had no room for a byte or a file more."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def explained(error: OSError | sqlite3.Error, directory: Path) -> str:
    """Return what went wrong and, where a disk is full, which one, by a directory that lies there."""
    said = str(error) if isinstance(error, sqlite3.Error) else error.strerror or str(error)
    if lacks_room(error):
        return f"{said}: make room on the disk of {directory}"
    path = getattr(error, "filename", None)
    return f"{said}: {path}" if path else said
