"""How the ranks of a mesh agree on a new process group, again and again, whoever of them died or was interrupted.

The store lives outside the ranks. Every group is one round on it, with keys that no other round uses. A round goes:

1. every rank says that it is here; the last one to come completes the round;
2. every rank that sees the round complete says that it is still alive; the last one forms the group.

A rank that finds itself here already died or was interrupted in this round before: it cancels the round, and all go
on to the next. So a group is formed only by ranks that all waited for it at one moment, and what a dead rank left
behind spoils nothing: its next life cancels the round, or the round never completes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlparse

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.worker.groups.c10d import Hush
from monarch_nb.worker.groups.connections import Endpoint, resolve
from monarch_nb.worker.groups.store import Address, MeshStore, connect

_CONNECT_TIMEOUT = timedelta(seconds=20)
_ROOT = "monarch_nb"
_FORMED, _CANCELLED = "formed", "cancelled"


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str | bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


def agree(store: Store, rank: int, world_size: int) -> int:
    """Wait until every rank wants a new group; return a number that is the same on all and new to the store.

    Raises whatever a blocking call on `store` raises.
    """
    life = uuid.uuid4().hex
    while True:
        number = store.add("round", 0)
        verdict = _take_part(store, f"{number}/", rank, world_size, life)
        # Whoever knows the verdict moves all on: the one that made it may be dead.
        store.compare_set("round", str(number), str(number + 1))
        if verdict == _FORMED:
            return number


def missing_ranks(store: Store, world_size: int) -> list[int]:
    """Return the ranks that have not come to the present round."""
    number = store.add("round", 0)
    return [rank for rank in range(world_size) if not store.check([f"{number}/here/{rank}"])]


def _take_part(store: Store, keys: str, rank: int, world_size: int, life: str) -> str:
    if text_of(store.compare_set(f"{keys}here/{rank}", "", life)) != life:
        _decide(store, keys, _CANCELLED)
        return _CANCELLED
    if store.add(f"{keys}arrived", 1) == world_size:
        store.set(f"{keys}complete", "1")
    store.get(f"{keys}complete")
    if store.add(f"{keys}alive", 1) == world_size:
        _decide(store, keys, _FORMED)
    return text_of(store.get(f"{keys}verdict"))


def _decide(store: Store, keys: str, verdict: str) -> None:
    """The first verdict counts. All who wait in either phase are woken."""
    store.compare_set(f"{keys}verdict", "", verdict)
    store.set(f"{keys}complete", "1")


def text_of(value: bytes | str) -> str:
    """Return what a store has given as text."""
    return value if isinstance(value, str) else value.decode()


class Rendezvous:
    """What `env://` means in a rank. Torch's own handler would host a store in rank 0.

    Args:
        mesh_store: the mesh's own store; None where there is none.
        endpoints: gets the address of every store that is used.
        hush: silences torch.

    Attributes:
        world: the ranks of the mesh that make groups, where these are a world of their own; empty for all.
        part: the ranks that the newest cell runs on, where these are not all of its world.
    """

    def __init__(self, mesh_store: MeshStore | None, endpoints: set[Endpoint], hush: Hush) -> None:
        self.world = ""
        self.part: Sequence[int] = ()
        self._mesh_store, self._endpoints, self._hush = mesh_store, endpoints, hush
        self._store: tuple[Address, Any] | None = None
        self._left: str | None = None
        if mesh_store is not None:
            endpoints |= resolve(*mesh_store.look())

    def __call__(self, url: str, timeout: timedelta = timedelta(minutes=30), **_: Any) -> tuple[Any, int, int]:
        """Return (store, rank, world size) of a new group; the store holds no key yet."""
        dist: Any = importlib.import_module("torch.distributed")

        query = dict(parse_qsl(urlparse(url).query))
        rank, world_size = (int(query.get(name.lower()) or _environment(name)) for name in ("RANK", "WORLD_SIZE"))
        if not 0 <= rank < world_size:
            known = f"ranks are 0 to {world_size - 1}" if world_size > 1 else "the only rank is 0"
            raise ValueError(f"no rank {rank} in a world of {world_size}: {known}")
        address, name, follows = self._choose_store()
        store = self._connect(address, follows, timeout)
        part = self.part_here()
        world = format_ranks(part) if world_size == len(part) else self.world  # cells on other parts do the same
        prefix = f"{_ROOT}/{name}{f'{world}/' if world else ''}{world_size}"
        talk = dist.PrefixStore(prefix, store)
        try:
            number = agree(talk, rank, world_size)
        except dist.DistStoreError as error:
            missing = ", ".join(map(str, missing_ranks(talk, world_size)))
            waited = f"waited {timeout.total_seconds():g} s for all {world_size} ranks to call init_process_group()"
            raise dist.DistStoreError(f"{waited}; these did not: {missing or 'none'}") from error
        if rank == 0:
            _forget_older(store, prefix, number)
        self._left = f"{prefix}/{number}/left"
        return dist.PrefixStore(f"{prefix}/{number}/group", store), rank, world_size

    def part_here(self) -> Sequence[int]:
        """Return `part`, or nothing in an endpoint of an actor: these are in other threads than cells."""
        return self.part if threading.current_thread() is threading.main_thread() else ()

    def forget(self) -> None:
        """The last group was destroyed."""
        self._left = None

    def leave(self) -> None:
        """Tell the other ranks of the last group that it is of no use any more: not all of them can see it (NCCL, and
        Gloo's until it is freed). Returns when they can know."""
        left, self._left = self._left, None
        if left is not None and self._store is not None:
            address, store = self._store
            if not _listens(address):
                return
            with self._hush, contextlib.suppress(RuntimeError):  # its connection is broken
                store.set(left, "1")
                store.check([left])  # `set` waits for no answer: others are to know it from now on

    def was_left(self) -> bool:
        """Return whether another rank has left the last group."""
        return self._left is not None and self._check(self._left) is True

    def _connect(self, address: Address, follows: MeshStore | None, timeout: timedelta) -> Any:
        """Return a connection to a store: the last one if it still works, for torch asks DNS at each new one.

        Args:
            follows: says where it is by now; None: a store that does not move.
        """
        if self._store is None or self._store[0] != address or self._check("round") is None:
            self._store = None

            def attempt(within: timedelta) -> Any:
                self._store = self._attempt(address, follows, within)
                return self._store[1]

            connect(attempt, f"{address[0]}:{address[1]}", min(timeout, _CONNECT_TIMEOUT), self._hush)
        assert self._store is not None
        store = self._store[1]
        store.set_timeout(timeout)
        return store

    def connection(self, timeout: timedelta) -> Any:
        """Return a connection of its own to the store of the mesh, which no group uses. It may be broken with those of
        groups (see `breaking`): then the caller asks for another.

        Raises:
            RuntimeError: no store answers within `timeout`.
        """
        address, _, follows = self._choose_store()

        def attempt(within: timedelta) -> Any:
            return self._attempt(address, follows, within)[1]

        return connect(attempt, f"{address[0]}:{address[1]}", timeout, self._hush)

    def _attempt(self, address: Address, follows: MeshStore | None, within: timedelta) -> tuple[Address, Any]:
        """Connect once, to where the store is now; return the place, and the connection."""
        dist: Any = importlib.import_module("torch.distributed")
        now = follows.look() if follows is not None else address
        self._endpoints |= resolve(*now)
        try:
            if not _listens(now):  # at once, where torch would try on
                raise dist.DistNetworkError(f"no store listens at {now[0]}:{now[1]}")
            return now, dist.TCPStore(*now, is_master=False, wait_for_workers=False, timeout=within)
        except RuntimeError:
            if follows is not None:
                follows.report(now)
            raise

    def _check(self, key: str) -> bool | None:
        """Return whether the last store has a key, or None when there is none or it does not answer: a connection to a
        host that is gone would wait for minutes."""
        if self._store is None or not _listens(self._store[0]):
            return None
        try:
            with self._hush:
                return bool(self._store[1].check([key]))
        except RuntimeError:
            return None

    def _choose_store(self) -> tuple[Address, str, MeshStore | None]:
        """Return where to connect, a name for the ranks that use it, and who follows the store where it moves, which
        only the mesh's does: from here on, for it may move before it is connected to.

        Scripts set MASTER_ADDR and MASTER_PORT to anything, for rank 0 to host a store there. The mesh's store does as
        well, and lasts; but where a store listens already, it is meant.
        """
        of_mesh = self._mesh_store.look() if self._mesh_store is not None else None
        asked = _environment("MASTER_ADDR"), int(_environment("MASTER_PORT"))
        if of_mesh is not None and asked == of_mesh:
            return of_mesh, "", self._mesh_store
        if of_mesh is None or _listens(asked):
            return asked, "", None
        return of_mesh, f"{asked[0]}:{asked[1]}/", self._mesh_store


def _environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: "
            f"environment variable {name} expected, but not set"
        )
    return value


def _listens(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def _forget_older(store: Any, prefix: str, number: int) -> None:
    """Delete the keys of earlier rounds: every rank has left their groups, and Gloo leaves many."""
    for key in store.list_keys():
        round_, _, rest = key.removeprefix(f"{prefix}/").partition("/")
        if rest and round_.isdecimal() and int(round_) < number:
            store.delete_key(key)
