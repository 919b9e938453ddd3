"""Whatever is killed at any moment of a save or a load: the new save is complete, or the one before is whole; and what
a load has changed is said.

By hand: `MONARCH_NB_KILL_ROUNDS=200 pytest -s` of this file takes ten minutes, and prints a
line for each round. MONARCH_NB_KILL_SEED has it take other moments, MONARCH_NB_KILL one kind of fault alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.live import client, eventually, kill, pids_of
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import MonarchNbError
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner
from monarch_nb.worker.saving.manifest import Manifest, damage

KINDS = ("rank", "allocator", "node", "client")
FAULTS = [(kind, what) for what in ("load", "save") for kind in KINDS] + [("full", "save"), ("unmounted", "save")]
FAULTS = [fault for fault in FAULTS if os.environ.get("MONARCH_NB_KILL", fault[0]) == fault[0]]
ROUNDS = int(os.environ.get("MONARCH_NB_KILL_ROUNDS", str(len(FAULTS))))
LONGEST_S = 120.0
"""Longer no call may take: a client gives a node up sooner."""

SETUP = """
import torch
torch.manual_seed(1)
model, big, part, step = torch.nn.Linear(512, 512), torch.rand(1 << 22), torch.zeros(1 << 18), 0
def put(number):
    global step
    step = number
    part.fill_(rank + 10 * number)
    big.fill_(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)
def held():
    values = [big.unique().tolist(), (part - rank).div(10).unique().tolist(), [float(step)]]
    values += [parameter.unique().tolist() for parameter in model.parameters()]
    return sorted({float(value) for each in values for value in each})
"""
NAMES = ["model", "big", "part", "step"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 60 * ROUNDS)]


@pytest.fixture
def mesh(spare_pool: list[Node]) -> Iterator[Mesh]:
    reservation = reserve("killed", nodes=2, procs=2, preload=["torch"])
    yield reservation.mesh
    reservation.release()


class Outcome:
    """What became of a call that something was done to."""

    def __init__(self) -> None:
        self.error: MonarchNbError | None = None
        self.took_s = 0.0


def call_and(call: Callable[[], object], fault: Callable[[], object], after_s: float) -> Outcome:
    """Make a call in a thread, have a fault happen meanwhile, and wait for the end of the call."""
    outcome = Outcome()

    def do() -> None:
        try:
            call()
        except MonarchNbError as error:
            outcome.error = error

    began = time.monotonic()
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    time.sleep(after_s)
    fault()
    thread.join(LONGEST_S)
    outcome.took_s = time.monotonic() - began
    assert not thread.is_alive(), "it hangs"
    return outcome


class Rounds:
    """One fault after the other."""

    def __init__(self, mesh: Mesh, tmp_path: Path, chance: random.Random) -> None:
        self.mesh, self.chance, self.path = mesh, chance, tmp_path
        self.place = tmp_path / "saves"
        self.place.mkdir()
        mesh.run(SETUP)
        mesh.run("put(0)")
        mesh.save(self.place, NAMES)
        self.last = 0
        self.whole_s = 0.0
        self.take_time("save")
        self.take_time("save")

    def take_time(self, what: str) -> None:
        began = time.monotonic()
        self.call(what)()
        self.whole_s = time.monotonic() - began

    def fault(self, kind: str) -> Callable[[], object]:
        pids, number = pids_of(self.mesh), self.chance.choice([0, 1])
        node = LocalProvisioner().nodes()[number]
        doomed = {
            "rank": [self.chance.choice(list(pids.values()))],
            "allocator": [node.pid],
            "node": [node.pid, pids[2 * number], pids[2 * number + 1]],
        }

        def happens() -> None:
            for pid in doomed[kind]:
                kill(pid or 0)
            LocalProvisioner().up()  # allocators that were killed; they adopt ranks that live

        return happens

    def call(self, what: str) -> Callable[[], object]:
        if what == "save":
            return lambda: self.mesh.save(self.place, NAMES, keep=3)
        return lambda: self.mesh.load(self.place)

    def killed(self, number: int, kind: str, what: str) -> str:
        """Kill something in the middle; return what became of it."""
        before = self.mesh.saves(self.place)[0].path
        new = number if what == "save" else -number
        self.mesh.run(f"put({new})")
        after_s = self.chance.uniform(0, self.whole_s)
        if kind == "client":
            outcome = self._client_killed(what, after_s)
        else:
            outcome = call_and(self.call(what), self.fault(kind), after_s)
        eventually(lambda: all(info.state != "running" for info in self.mesh.status()))
        self._check_saves(before)
        states = self.mesh.status()
        if what == "load":
            self._check_loaded(new, outcome, {info.rank for info in states if info.state == "dead"})
        if any(info.state == "dead" for info in states):
            self.mesh.restart()
            self.mesh.run(SETUP)
        self.mesh.load(self.place)
        [[holds]] = {tuple(each) for each in self.mesh.run("held()").values}
        assert holds in ({self.last, number} if what == "save" else {self.last}), holds
        if what == "save" and outcome.error is None and kind != "client":
            assert holds == number
        became = "whole" if holds == number or outcome.error is None else "before"
        self.last = int(holds)
        return f"{became} in {outcome.took_s:.1f} s: {outcome.error}"

    def _client_killed(self, what: str, after_s: float) -> Outcome:
        keyword = f", {NAMES!r}, keep=3" if what == "save" else ""
        program = f"""
import monarch_nb
mesh = monarch_nb.attach("killed").mesh
print("now", flush=True)
mesh.{what}({str(self.place)!r}{keyword})
"""
        with client(program) as doomed:
            doomed.line()
            time.sleep(after_s)
            kill(doomed.process.pid)
        return Outcome()

    def _check_saves(self, before: str) -> None:
        after = self.mesh.saves(self.place)
        assert before in [info.path for info in after], "the one before is whole"
        for info in after:
            assert damage(Path(info.path), Manifest.read(Path(info.path))) == {}

    def _check_loaded(self, old: int, outcome: Outcome, dead: set[int]) -> None:
        """Everything has changed on a rank or nothing; else the names are told."""
        living = [rank for rank in self.mesh.ranks if rank not in dead]
        if not living:
            return
        mixed = [each for each in self.mesh.select(living).run("held()").values if len(each) != 1]
        assert not mixed or (outcome.error is not None and "load again" in str(outcome.error))
        if outcome.error is not None and "nothing has changed" in str(outcome.error):
            assert not mixed

    def full(self, number: int) -> str:
        """The disk is full in the middle of a save."""
        place = self.path / f"full-{number}"
        place.mkdir()
        self.mesh.run(f"put({number})")
        mount("-t", "tmpfs", "-o", f"size={self.chance.randint(24 << 20, 40 << 20)}", "tmpfs", str(place))
        try:
            first = self.mesh.save(place, NAMES).path
            with pytest.raises(MonarchNbError, match=r"No space left on device|can not write") as refused:
                self.mesh.save(place, NAMES)
            assert [info.path for info in self.mesh.saves(place)] == [first]
            assert damage(Path(first), Manifest.read(Path(first))) == {}
            mount("-o", "remount,size=200m", str(place))
            self.mesh.save(place, NAMES)
            assert [name for name in os.listdir(place) if name.startswith(".")] == []
            return str(refused.value)
        finally:
            subprocess.run(["umount", str(place)], check=True)

    def unmounted(self, number: int) -> str:
        """The storage is unmounted in the middle of a save."""
        store, place = self.path / f"store-{number}", self.path / f"mounted-{number}"
        store.mkdir()
        place.mkdir()
        self.mesh.run(f"put({number})")
        mount("--bind", str(store), str(place))
        first = Path(self.mesh.save(place, NAMES).path)
        outcome = call_and(
            lambda: self.mesh.save(place, NAMES),
            lambda: subprocess.run(["umount", "-l", str(place)], check=True),
            self.chance.uniform(0, self.whole_s),
        )
        for save in [*store.iterdir(), *place.iterdir()]:
            if not save.name.startswith("."):
                assert damage(save, Manifest.read(save)) == {}
        assert (store / first.name).is_dir()
        mount("--bind", str(store), str(place))
        try:
            self.mesh.save(place, NAMES)
            self.mesh.load(place)
        finally:
            subprocess.run(["umount", str(place)], check=True)
        return f"in {outcome.took_s:.1f} s: {outcome.error}"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def test_anything_is_killed_at_any_moment(mesh: Mesh, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("MONARCH_NB_KILL_SEED", "7")))
    rounds = Rounds(mesh, tmp_path, chance)
    for number in range(1, ROUNDS + 1):
        kind, what = FAULTS[number % len(FAULTS)]
        if kind in ("full", "unmounted"):
            if os.geteuid() != 0:
                continue
            became = rounds.full(number) if kind == "full" else rounds.unmounted(number)
        else:
            became = rounds.killed(number, kind, what)
        print(f"round {number}: {kind}, {what}: {became}", flush=True)
