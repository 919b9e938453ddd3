"""Actors from a notebook: what a cell calls, prints, interrupts and loses is that cell's; a new kernel finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.kernels import Kernel
from integration.live import eventually

TRAINER = """
import os, signal, time
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint, this_proc

class Trainer(Actor):
    def __init__(self, lr):
        self.lr, self.rank = lr, current_rank().rank

    @endpoint
    def step(self, n):
        print("step", n)
        return self.rank * n

    @endpoint
    def fail(self):
        raise ValueError(f"bad {self.rank % 2}")

    @endpoint
    def wait(self, seconds):
        print("waits", flush=True)
        time.sleep(seconds)

    @endpoint
    def save(self):
        try:
            print("saves", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            return "saved"

    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

mesh = monarch_nb.attach("dev").mesh
trainers = mesh.spawn("trainers", Trainer, lr=3e-4)
"""


@pytest.fixture
def trainers(kernel: Kernel) -> Kernel:
    """A kernel with `trainers` on the 4 ranks of "dev"."""
    assert "Error" not in kernel.run(TRAINER)
    return kernel


@pytest.mark.quick
def test_the_example(trainers: Kernel) -> None:
    shown = trainers.run("trainers.step.call(10).get()")
    assert "ValueMesh({hosts: 2, procs: 2})" in shown
    assert "rank 3: 30" in shown
    assert "[0-3] step 10" in shown
    assert "rank 1: 7" in trainers.run("await trainers.step.call(7)")
    cell = trainers.start("trainers.slice(hosts=0).step.broadcast(1)")
    assert "[0-1] step 1" in trainers.wait(cell, "[0-1] step 1")
    assert "0.0003" in trainers.run('%%mesh\nactors["trainers"].lr')
    eventually(lambda: "trainers  Trainer  main  0-3    idle" in trainers.run("%mesh actors"))  # just after its answer


def test_a_class_of_a_cell_has_the_notebooks_globals_and_imports_the_ranks(trainers: Kernel) -> None:
    trainers.run("%%mesh\nscale, factor = 10 * (rank + 1), 100")
    helped = """
def helper(x):
    return factor * x

class Helped(Actor):
    @endpoint
    def both(self):
        from __main__ import scale
        return helper(scale)

factor = {}
mesh.spawn("helped", Helped).both.call().get()
"""
    assert "rank 3: 80" in trainers.run(helped.format(2))
    assert "rank 3: 120" in trainers.run(helped.format(3)), "as they are when it is spawned"


def test_an_interrupt_reaches_the_endpoints(trainers: Kernel) -> None:
    cell = trainers.start("trainers.wait.call(1000).get()")
    trainers.wait(cell, "trainers.wait: ranks 0-3 run it")
    trainers.interrupt()
    shown = trainers.wait(cell).replace("\x1b[39m", "")
    assert "KeyboardInterrupt: interrupted trainers.wait" in shown
    assert "[0-3] waits" in shown
    assert "run it" not in shown, "what is not true any more does not stay"
    assert "rank 3: 3" in trainers.run("trainers.step.call(1).get()")
    trainers.run("import asyncio")
    cell = trainers.start("await asyncio.gather(trainers.wait.call(1000), trainers.wait.call(1000))")
    trainers.wait(cell, "[0-3] waits")
    trainers.interrupt()
    assert "CancelledError: interrupted trainers.wait" in trainers.wait(cell).replace("\x1b[39m", "")
    assert "rank 3: 3" in trainers.run("await trainers.step.call(1)"), "pressed once: no rank was killed"
    cell = trainers.start("await asyncio.sleep(0)\ntrainers.wait.call(1000).get()")
    trainers.wait(cell, "[0-3] waits")
    trainers.interrupt()
    assert "KeyboardInterrupt: interrupted trainers.wait" in trainers.wait(cell).replace("\x1b[39m", "")
    cell = trainers.start("print(sorted(set((await trainers.save.call()).values())))\nawait asyncio.sleep(1000)")
    trainers.wait(cell, "[0-3] saves")
    trainers.interrupt()
    trainers.wait(cell, "['saved']")
    trainers.interrupt()
    assert "CancelledError" in trainers.wait(cell), "who has handled one press is reached by the next"


def test_a_rank_that_dies_fails_the_call_and_is_named(trainers: Kernel) -> None:
    shown = trainers.run("trainers.slice(hosts=1, procs=1).die.call_one().get(60)")
    assert "SupervisionError" in shown
    assert "rank 3 died" in shown
    trainers.run(STUBBORN)
    trainers.run(
        "from monarch_nb.client.runs import calls_run\nusual_s, calls_run.STOP_WAIT_S = calls_run.STOP_WAIT_S, 2.0"
    )
    cell = trainers.start("stubborn.wait.call().get()")
    trainers.wait(cell, "never stops")
    for times in (1, 2):
        trainers.interrupt()
        trainers.wait(cell, f"pressed {times}")
    trainers.wait(cell, "interrupt again within 10 s to kill and restart it")
    trainers.interrupt()
    shown = trainers.wait(cell).replace("\x1b[39m", "")
    assert "killed and restarted rank 1" in shown
    trainers.run("calls_run.STOP_WAIT_S = usual_s")


STUBBORN = """
class Stubborn(Actor):
    @endpoint
    def wait(self):
        print("never stops", flush=True)
        times = 0
        while True:
            try:
                time.sleep(1000)
            except KeyboardInterrupt:
                times += 1
                print("pressed", times, flush=True)

stubborn = mesh.slice(hosts=0, procs=1).spawn("stubborn", Stubborn)
"""

CALLER = """
class Caller(Actor):
    def __init__(self, other):
        self.other = other

    @endpoint
    def go(self, n):
        print("goes")
        return self.other.step.call(n).get()

    @endpoint
    def leave(self, n):
        self.other.step.broadcast(n)

others = monarch_nb.attach("dev").spawn_procs({"gpus": 1}, name="evaluators")
callers = mesh.slice(hosts=0, procs=0).spawn("callers", Caller, others.spawn("graders", Trainer, lr=0))
"""


@pytest.fixture
def nested(trainers: Kernel) -> Iterator[Kernel]:
    """A kernel with `callers` on rank 0 of "dev", which call `graders` on the 2 ranks of a mesh beside it."""
    assert "Error" not in trainers.run(CALLER)
    yield trainers
    trainers.run("others.stop().get(60)")


def test_calls_on_another_mesh_print_in_the_cell_and_are_interrupted(nested: Kernel) -> None:
    shown = nested.run("callers.go.call(3).get()")
    assert "goes" in shown
    assert "[0-1] step 3" in shown
    cell = nested.start("callers.leave.broadcast(4)")
    assert "[0-1] step 4" in nested.wait(cell, "[0-1] step 4")
    nested.run("graders = monarch_nb.attach('dev').actors['graders']")
    called = nested.start("trainers.wait.broadcast(1000)")
    nested.wait(called, "[0-3] waits")
    nested.run("trainers.wait.broadcast(1001)")
    beside = nested.start("graders.wait.broadcast(1000)")
    nested.wait(beside, "[0-1] waits")
    shown = nested.run("%mesh interrupt")
    assert "interrupted trainers.wait on ranks 0-3 and graders.wait of evaluators on ranks 0-1" in shown
    assert "dropped 4 messages that waited for actors" in shown
    assert "wait for" not in nested.run("%mesh actors")
    assert "nothing was running" in nested.run("%mesh interrupt")
    assert "rank 3: 3" in nested.run("trainers.step.call(1).get()")
