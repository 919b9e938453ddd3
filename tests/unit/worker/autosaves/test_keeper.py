"""What a rank that is asked to save before its end does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.proto.run_pb2 import ArmSaves, SaveNow, SavesStatus
from monarch_nb.worker.autosaves.keeper import Keeper, Wanted
from unit.worker.autosaves.test_agreement import Store

TIMEOUT_S = 60.0


@dataclass
class Below:
    """Part of a store."""

    of: Any
    prefix: str

    def get(self, key: str, /) -> bytes:
        return self.of.get(f"{self.prefix}/{key}")  # type: ignore[no-any-return]

    def set(self, key: str, value: str, /) -> None:
        self.of.set(f"{self.prefix}/{key}", value)

    def add(self, key: str, amount: int, /) -> int:
        return self.of.add(f"{self.prefix}/{key}", amount)  # type: ignore[no-any-return]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        return self.of.compare_set(f"{self.prefix}/{key}", expected, desired)  # type: ignore[no-any-return]

    def check(self, keys: list[str], /) -> bool:
        return self.of.check([f"{self.prefix}/{key}" for key in keys])  # type: ignore[no-any-return]


class Mesh:
    """Ranks in one process. Nothing executes on their main threads while `ask` waits."""

    def __init__(self, size: int = 1) -> None:
        store = Store()
        self.ranks = [Rank(rank, size, store) for rank in range(size)]

    def arm(self, **how: Any) -> None:
        for rank in self.ranks:
            armed = threading.Event()
            rank.keeper.arm(ArmSaves(secret="s", directory="/tmp", at_end=True, **how), lambda _, e=armed: e.set())
            assert armed.wait(TIMEOUT_S)

    def execute(self, number: int, *, steps: int = 0) -> None:
        """Have all ranks execute a run."""
        for rank in self.ranks:
            rank.keeper.begin_run(number)
            for _ in range(steps):
                rank.keeper.stepped(rank)
            rank.keeper.end_run()

    def ask(self, rank: int, why: str = "the end") -> list[str]:
        """Ask a rank to save; return why all have saved since the beginning."""
        answered = self.ranks[rank].ask(why)
        self.idle_until(lambda: answered.is_set() and all(each.whys == self.ranks[0].whys for each in self.ranks))
        return self.ranks[0].whys

    def idle_until(self, is_done: Callable[[], bool], *, ranks: slice = slice(None)) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while not is_done():
            assert time.monotonic() < until_s
            for rank in self.ranks[ranks]:
                rank.idle()
            time.sleep(0.01)


@dataclass(eq=False)
class Rank:
    rank: int
    size: int
    store: Store
    calls: list[Callable[[], None]] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keeper = Keeper(
            self.rank,
            self.size,
            connect=lambda _: self.store,
            prepare=lambda: None,
            prefix=lambda prefix, store: Below(store, prefix),  # type: ignore[arg-type, return-value]
            save=self.save,
            when_idle=self.calls.append,
            between_runs=lambda call: call(),
        )

    def save(self, wanted: Wanted) -> Any:
        self.whys.append(wanted.request.why)
        return SimpleNamespace(path="/tmp/0001", describe=lambda: "")

    def ask(self, why: str) -> threading.Event:
        answered = threading.Event()

        def done(status: SavesStatus) -> None:
            assert not status.problem
            answered.set()

        self.keeper.save_now(SaveNow(why=why, within_s=TIMEOUT_S, fresh_s=30.0, is_last=True), done)
        return answered

    def idle(self) -> None:
        while self.calls:
            self.calls.pop(0)()


@pytest.fixture
def make() -> Iterator[Callable[[int], Mesh]]:
    made: list[Mesh] = []

    def make_mesh(size: int = 1) -> Mesh:
        made.append(Mesh(size))
        return made[-1]

    yield make_mesh
    for mesh in made:
        for rank in mesh.ranks:
            rank.keeper.arm(ArmSaves(), lambda _: None)
            rank.keeper._thread.join(TIMEOUT_S)  # type: ignore[union-attr]


@pytest.mark.parametrize("steps", [0, 1], ids=["a run", "a step"])
def test_what_came_after_the_last_save_is_saved_at_the_end_however_young_that_is(
    make: Callable[..., Mesh], steps: int
) -> None:
    mesh = make()
    mesh.arm()
    mesh.execute(1, steps=1)
    assert mesh.ask(0, "first") == ["first"]
    mesh.execute(2, steps=steps)
    assert mesh.ask(0) == ["first", "the end"]


def test_nothing_is_saved_at_the_end_when_nothing_came_after_the_last_save(make: Callable[..., Mesh]) -> None:
    mesh = make()
    mesh.arm()
    mesh.execute(1, steps=1)
    mesh.ask(0, "first")
    assert mesh.ask(0) == ["first"]


def test_a_save_in_the_background_may_not_be_written_yet(make: Callable[..., Mesh]) -> None:
    mesh = make()
    mesh.arm(background=True)
    mesh.execute(1, steps=1)
    mesh.ranks[0].keeper._wish = "every step"
    mesh.ranks[0].keeper._wake.set()
    mesh.idle_until(lambda: bool(mesh.ranks[0].whys))
    assert mesh.ask(0) == ["every step", "the end"]


def test_a_save_in_the_background_that_is_under_way_is_not_the_last_one(make: Callable[..., Mesh]) -> None:
    mesh = make(2)
    mesh.arm(background=True)
    mesh.execute(1, steps=1)
    first, late = (rank.keeper for rank in mesh.ranks)
    late.begin_run(2)  # who wants a save waits for it
    first._wish = "every step"
    first._wake.set()
    mesh.idle_until(lambda: any(key.endswith("/request") for key in list(mesh.ranks[0].store.values)))
    answered = mesh.ranks[0].ask("the end")
    late.end_run()
    mesh.idle_until(lambda: answered.is_set() and [*map(len, (rank.whys for rank in mesh.ranks))] in ([1, 1], [2, 2]))
    assert mesh.ranks[0].whys == ["every step", "the end"]


def test_a_node_that_asks_a_moment_later_than_another_has_its_save(make: Callable[..., Mesh]) -> None:
    mesh = make(2)
    mesh.arm()
    mesh.execute(1, steps=1)
    mesh.ask(0, "first")
    mesh.execute(2, steps=1)  # a training goes on meanwhile
    assert mesh.ask(1, "first") == ["first"]
    assert mesh.ask(1, "the end") == ["first", "the end"], "its second question is another one"
    mesh.execute(3, steps=1)
    assert mesh.ask(0, "the end") == ["first", "the end"]


def test_a_run_that_begins_while_all_save_comes_after_that_save(make: Callable[..., Mesh]) -> None:
    mesh = make(2)
    mesh.arm()
    mesh.execute(1, steps=1)
    answered, late = mesh.ranks[0].ask("first"), mesh.ranks[1].keeper
    mesh.idle_until(lambda: late._decision is not None, ranks=slice(1))
    late.begin_run(2)  # it waits for the save
    late.end_run()
    mesh.idle_until(answered.is_set)
    assert mesh.ask(1, "first") == ["first"]
    assert mesh.ask(1) == ["first", "the end"]
