"""Ranks agree on a new group, wherever any of them dies on the way."""

from __future__ import annotations

import itertools
import random
import socket
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.groups.c10d import Hush
from monarch_nb.worker.groups.rendezvous import Rendezvous, agree
from monarch_nb.worker.groups.store import Address, MeshStore

WAIT_S = 10.0


class Died(BaseException):
    """The process of a rank ended."""


class MemoryStore:
    """A store in memory, as torch's TCPStore behaves."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, /) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, WAIT_S):
                raise TimeoutError(key)
            return self.values[key].encode()

    def add(self, key: str, amount: int, /) -> int:
        with self.changed:
            value = int(self.values.get(key, "0")) + amount
            self.set(key, str(value))
            return value

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self.changed:
            if self.values.get(key, "") == expected:
                self.set(key, desired)
            return self.values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        with self.changed:
            return all(key in self.values for key in keys)


class MortalStore(MemoryStore):
    """One process's view of a store: the process dies at its `dies_at`-th call, before or after it had an effect."""

    def __init__(self, store: MemoryStore, dies_at: int, afterwards: bool) -> None:
        self.values, self.changed = store.values, store.changed
        self.store, self.calls_left, self.afterwards = store, dies_at, afterwards

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name not in ("set", "get", "add", "compare_set", "check"):
            return super().__getattribute__(name)

        def call(*arguments):  # type: ignore[no-untyped-def]
            self.calls_left -= 1
            if self.calls_left == 0 and not self.afterwards:
                raise Died
            result = getattr(self.store, name)(*arguments)
            if self.calls_left == 0:
                raise Died
            return result

        return call


class World:
    """Ranks as threads. Who formed a group with a rank that is dead leaves it, as the allocator tells survivors to."""

    def __init__(self, size: int) -> None:
        self.size, self.store = size, MemoryStore()
        self.members: dict[int, set[int]] = defaultdict(set)
        self.aborted: set[int] = set()
        self.changed = threading.Condition()

    def live(self, rank: int, dies_at: int, afterwards: bool) -> int:
        """Return the group that all the world is in at last."""
        store: MemoryStore = MortalStore(self.store, dies_at, afterwards)
        while True:
            try:
                group = agree(store, rank, self.size)
            except Died:
                store = self.store  # forked again
                self._abort_groups_of(rank)
            else:
                if self._join(group, rank):
                    return group

    def _abort_groups_of(self, rank: int) -> None:
        with self.changed:
            self.aborted |= {int(key.split("/")[0]) for key in list(self.store.values) if key.endswith(f"/here/{rank}")}
            self.changed.notify_all()

    def _join(self, group: int, rank: int) -> bool:
        with self.changed:
            self.members[group].add(rank)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(self.members[group]) == self.size or group in self.aborted, WAIT_S)
            return group not in self.aborted


def run_world(size: int, deaths: dict[int, tuple[int, bool]]) -> list[int]:
    world = World(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: world.live(rank, *deaths.get(rank, (0, False))), range(size)))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_at_any_call_spoils_nothing(rank: int) -> None:
    for call, afterwards in itertools.product(range(1, 9), (False, True)):
        assert len(set(run_world(3, {rank: (call, afterwards)}))) == 1, (call, afterwards)


def test_many_deaths_at_once() -> None:
    for seed in range(10):
        chance = random.Random(seed)
        size = chance.randint(1, 6)
        deaths = {rank: (chance.randint(1, 12), chance.random() < 0.5) for rank in range(size) if chance.random() < 0.7}
        assert len(set(run_world(size, deaths))) == 1, seed


def test_no_group_is_formed_with_a_rank_that_died_while_it_waited() -> None:
    store = MemoryStore()
    with pytest.raises(Died):
        agree(MortalStore(store, dies_at=4, afterwards=False), 1, 3)  # before it could wait
    with ThreadPoolExecutor(3) as pool:
        results = [pool.submit(agree, store, rank, 3) for rank in (0, 2)]
        with store.changed:
            assert store.changed.wait_for(lambda: store.values.get("0/alive") == "2", WAIT_S)
        assert "0/verdict" not in store.values
        results.append(pool.submit(agree, store, 1, 3))
    assert [result.result() for result in results] == [1, 1, 1]


class MovingStore(MeshStore):
    """A mesh's store that moves right after a group's rank has looked where it is."""

    def __init__(self, before: Address, after: Address, note: Path) -> None:
        super().__init__(before, note, report=lambda address: None)
        self._after, self._file, self._looks = after, note, 0

    def look(self) -> Address:
        seen = super().look()
        self._looks += 1
        if self._looks == 2:  # the first one is as the rank begins
            self._file.write_text(f"{self._after[0]} {self._after[1]}")
        return seen


def test_a_store_that_moves_before_a_connection_is_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connected: list[Address] = []

    class Connection(MemoryStore):
        def __init__(self, host: str, port: int, **options: Any) -> None:
            super().__init__()
            connected.append((host, port))

        def set_timeout(self, timeout: timedelta) -> None: ...

        def list_keys(self) -> list[str]:
            return []

    class Failed(RuntimeError): ...

    torch = SimpleNamespace(
        TCPStore=Connection, PrefixStore=lambda prefix, store: store, DistNetworkError=Failed, DistStoreError=Failed
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    with socket.create_server(("127.0.0.1", 0)) as after, socket.socket() as before:
        before.bind(("127.0.0.1", 0))  # and nobody listens
        old, new = before.getsockname(), after.getsockname()
        for name, value in {"MASTER_ADDR": old[0], "MASTER_PORT": str(old[1]), "RANK": "0", "WORLD_SIZE": "1"}.items():
            monkeypatch.setenv(name, value)
        rendezvous = Rendezvous(MovingStore(old, new, tmp_path / "store"), set(), Hush())
        rendezvous("env://", timedelta(seconds=0))
    assert connected == [new]
