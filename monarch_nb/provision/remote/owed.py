"""Allocators that are still to be ended: their hosts could not be reached at the release. It is remembered, and done by
the next job of ssh's that finds them. Whoever ends a job holds the lock of all pools, so this has another."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from monarch_nb.config import config_directory
from monarch_nb.errors import PoolError
from monarch_nb.provision.remote.preparing import stop
from monarch_nb.trust.private_files import locked, read_private, write_private

Owed = tuple[str, str, str]
"""The host as ssh knows it, our directory on it, and the pool whose node is to be ended there."""


def owe(owed: Iterable[Owed]) -> None:
    """Remember what is to be ended.

    Raises:
        PoolError: it can not be written.
    """
    with locked(config_directory()):
        _write({*_read(), *owed})


async def settle() -> None:
    """End what can be reached now."""
    owed = _read()
    await asyncio.gather(*map(_settle, sorted(owed)))


async def _settle(owed: Owed) -> None:
    host, directory, pool = owed
    with contextlib.suppress(PoolError):
        await stop(host, directory, pool)
        with locked(config_directory()):
            _write(_read() - {owed})


def _path() -> Path:
    return config_directory() / "ssh-owed.json"


def _read() -> set[Owed]:
    try:
        return {(str(host), str(directory), str(pool)) for host, directory, pool in json.loads(read_private(_path()))}
    except (OSError, ValueError, TypeError):
        return set()


def _write(owed: set[Owed]) -> None:
    if owed:
        write_private(_path(), json.dumps(sorted(owed), indent=2).encode() + b"\n")
    else:
        _path().unlink(missing_ok=True)
