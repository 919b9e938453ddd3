"""Whatever is killed while Monarch's engine is started and used: what survives is found again, and no process stays.

By hand: `MONARCH_NB_ENGINE_KILL_ROUNDS=60 pytest -s` of this file takes ten minutes, and
prints a line for each round. MONARCH_NB_KILL_SEED has it take other moments, MONARCH_NB_KILL one kind of fault alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.live import eventually, kill
from integration.night.torchmonarch import Program, monarch_python
from leaks import processes_of
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision.local import LocalProvisioner

KINDS = ("client", "worker", "allocator")
KINDS = tuple(kind for kind in KINDS if os.environ.get("MONARCH_NB_KILL", kind) == kind)
ROUNDS = int(os.environ.get("MONARCH_NB_ENGINE_KILL_ROUNDS", str(len(KINDS))))
PROCESS = "monarch_nb.worker.monarch.process"

CLIENT = """
import json, os, sys
import monarch_nb
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def pid(self): return os.getpid()

dev = monarch_nb.attach("killed")

def use():
    global trainers
    trainers = dev.monarch().spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer)
    return call()

def call():
    pids = list(trainers.pid.call().get(60).values())
    return {"pids": pids, "workers": [info.pid for info in dev.meshes["monarch"].status()]}

print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    try:
        told = eval(line)
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told), flush=True)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 60 * ROUNDS)]


@pytest.fixture
def held(without_torch: None, pool_home: Path) -> Iterator[Reservation]:
    monarch_python()
    LocalProvisioner().up(nodes=2, procs=2)
    reservation = reserve("killed", nodes=2, procs=1, preload=[], python=str(monarch_python()))
    yield reservation
    reservation.release()


class Rounds:
    """One fault after the other, at any moment from the first `monarch()` to a call of an actor."""

    def __init__(self, held: Reservation, home: Path, tmp_path: Path, chance: random.Random) -> None:
        self.held, self.home, self.path, self.chance = held, home, tmp_path, chance
        self.doomed: list[int] = []
        self.client = self.started()
        began_s = time.monotonic()
        self.use()
        self.whole_s = time.monotonic() - began_s

    def started(self) -> Program:
        program = Program(CLIENT, self.path)
        program.told()
        return program

    def ask(self, what: str) -> dict[str, Any]:
        self.client.tell(what)
        return self.client.told()

    def use(self) -> None:
        """A client uses the workers, and so it can."""
        self.told = self.ask("use()")
        assert "error" not in self.told, self.told

    def another(self) -> None:
        """The client is killed: what it has started ends, and the workers live. The next one finds them."""
        self.client.kill()
        eventually(lambda: not self.processes())
        died = [info for info in self.held.meshes["monarch"].status() if not info.is_alive]
        assert [info.rank for info in died] == self.doomed, died
        self.client = self.started()
        self.use()

    def killed(self, kind: str) -> str:
        """Kill something; return what became of it."""
        after_s = self.chance.uniform(0, 1.2 * self.whole_s)
        how = {"client": self.client_killed, "worker": self.worker_killed, "allocator": self.allocator_killed}[kind]
        return f"{how(after_s)} after {after_s:.2f} s"

    def client_killed(self, after_s: float) -> str:
        workers = self.told["workers"]
        self.client.kill()
        self.client = self.started()
        self.client.tell("use()")
        time.sleep(after_s)
        self.another()
        assert self.told["workers"] == workers
        return "the same workers"

    def worker_killed(self, after_s: float) -> str:
        """Its processes end, it is started again, and the other worker is the one from before."""
        number = self.chance.choice([0, 1])
        worker, other = self.told["workers"][number], self.told["workers"][1 - number]
        with_it = self.told["pids"][2 * number : 2 * number + 2]
        in_the_middle = self.chance.choice([True, False])
        if in_the_middle:
            self.client.tell("use()")
            time.sleep(after_s)
        self.doomed = [number]
        kill(worker)
        eventually(lambda: not set(with_it) & set(self.processes()))
        if in_the_middle:  # it may wait for a minute
            self.another()
        else:
            self.use()
        self.doomed = []
        assert self.told["workers"][1 - number] == other
        assert self.told["workers"][number] != worker
        return f"another worker {number}, {'in the middle' if in_the_middle else 'between calls'},"

    def allocator_killed(self, after_s: float) -> str:
        """The next one adopts the worker. What the client has started goes on."""
        before = self.told
        node = LocalProvisioner().nodes()[self.chance.choice([0, 1])]
        assert node.pid is not None
        in_the_middle = self.chance.choice([True, False])
        if in_the_middle:
            self.client.tell("use()")
            time.sleep(after_s)
        kill(node.pid)
        LocalProvisioner().up()
        became = self.client.told().get("error", "done") if in_the_middle else "between calls"
        if not in_the_middle:
            assert self.ask("call()")["pids"] == before["pids"]
        self.use()
        assert self.told["workers"] == before["workers"]
        return f"the same workers, {became},"

    def processes(self) -> list[int]:
        """Those that workers have started for clients."""
        return [each.pid for each in processes_of(self.home) if PROCESS in each.command]


def test_anything_is_killed_at_any_moment(held: Reservation, pool_home: Path, tmp_path: Path) -> None:
    rounds = Rounds(held, pool_home, tmp_path, random.Random(int(os.environ.get("MONARCH_NB_KILL_SEED", "7"))))
    try:
        for number in range(ROUNDS):
            kind = KINDS[number % len(KINDS)]
            began_s = time.monotonic()
            became = rounds.killed(kind)
            print(f"round {number + 1}: {kind}: {became}, {time.monotonic() - began_s:.1f} s", flush=True)
    finally:
        rounds.client.kill()
    eventually(lambda: not rounds.processes())
