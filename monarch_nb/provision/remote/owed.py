"""Allocators that are still to be ended: their hosts could not be reached at the release. It is remembered, and done by
a process that the next job of ssh's starts, when it finds them. Whoever ends a job holds the lock of all pools, so this
has another."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO

from monarch_nb.config import config_directory
from monarch_nb.errors import PoolError
from monarch_nb.provision.daemons import daemon_environment, detach
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


def settle_others(pool: str, log: IO[bytes]) -> None:
    """End what can be reached now, but for nodes of a pool, which may start anew there: in a process of its own, so
    that nobody waits for hosts that are away or allocators that take their time."""
    if any(owed[2] != pool for owed in _read()):
        words = [sys.executable, "-m", "monarch_nb.provision.remote.owed", pool]
        detach(words, config_directory(), daemon_environment(), log)


def settle_on(hosts: Collection[str], pool: str) -> None:
    """End what is owed of a pool on some hosts, before its nodes start there anew."""

    def is_meant(owed: Owed) -> bool:
        return owed[0] in hosts and owed[2] == pool

    if any(map(is_meant, _read())):
        _settle(is_meant)


def _settle(is_meant: Callable[[Owed], bool]) -> None:
    """End what is owed. One process at a time does: else one that began earlier could end what has started since."""

    async def end_all() -> None:
        await asyncio.gather(*(_end(owed) for owed in sorted(_read()) if is_meant(owed)))

    with (config_directory() / "ssh-owed.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(end_all())


async def _end(owed: Owed) -> None:
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


if __name__ == "__main__":
    _settle(lambda owed: owed[2] != sys.argv[1])
