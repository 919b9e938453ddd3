"""Pools that many tests use, one after the other: starting one takes longer than most tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leaks import leaks_of
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.leasing import release
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner


class PoolOfMany:
    """A local pool in a state directory of its own, started when it is used first.

    Args:
        preload: what its nodes import at once. They import more when ranks are reserved that have it, and keep it.
        variables: of its nodes' environment.
    """

    def __init__(self, nodes: int, procs: int, *, isolate: bool = False, preload: str = "", **variables: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
        self._nodes, self._procs, self._isolate, self._preload = nodes, procs, isolate, preload
        self._variables = {**variables, HOME_VARIABLE: str(self._home)}

    @contextmanager
    def closing(self) -> Iterator[PoolOfMany]:
        """Take it down in the end; fail when it has left anything behind."""
        yield self
        with self._is_ours():
            LocalProvisioner().down(force=True)
        leaks = leaks_of(self._home)
        shutil.rmtree(self._home)
        assert not leaks, "left behind:\n" + "\n".join(leaks)

    @contextmanager
    def in_use(self) -> Iterator[list[Node]]:
        """Have it be the pool of this process: every node serves and nothing is reserved, before and after."""
        with self._is_ours():
            yield LocalProvisioner().up(nodes=self._nodes, procs=self._procs, isolate=self._isolate)
            make_whole()

    @contextmanager
    def _is_ours(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._variables.items():
                patch.setenv(name, value)
            patch.setattr("monarch_nb.provision.local.DEFAULT_PRELOAD", (self._preload,))
            yield


@contextmanager
def as_it_was(home: Path) -> Iterator[None]:
    """Release afterwards what has been reserved meanwhile, and forget what is remembered of notebooks."""
    before = {info.name for info in list_reservations()}
    yield
    for info in list_reservations():
        if info.name not in before:
            attach(info.name).release()
    shutil.rmtree(home / "notebooks", ignore_errors=True)


def make_whole(kept: str = "") -> None:
    """Start allocators again that were killed, and release what is reserved, but for the reservation of that name."""
    LocalProvisioner().up()
    release_all(kept)


def release_all(kept: str = "") -> None:
    """Release what is reserved, but for the reservation of that name."""
    for held in call(pool_named(None).reservations()):  # also those that are not ready or are ending by themselves
        if held.facts.name != kept:
            call(release([connection for connection, _ in held.nodes.values()], held.reservation_id))
