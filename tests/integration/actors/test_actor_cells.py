"""Actors from a notebook: what a cell calls, prints, interrupts and loses is that cell's; a new kernel finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from integration.kernels import PATIENT, Kernel
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
    def quiet(self):
        return 1

    @endpoint
    def fail(self):
        raise ValueError(f"bad {self.rank % 2}")

    @endpoint
    def wait(self, seconds):
        print("waits", flush=True)
        time.sleep(seconds)

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


def test_an_error_names_the_ranks(trainers: Kernel) -> None:
    shown = trainers.run("trainers.fail.call().get()")
    assert "trainers.fail failed on ranks 0-3 of 4" in shown
    assert "ValueError: bad 0" in shown
    assert "ValueError: bad 1" in shown
    assert re.search(r"Cell In\[\d+\], line", shown)
    assert "ipykernel_" not in shown
    assert "rank 2: 2" in trainers.run("trainers.step.call(1).get()"), "the actors live"


def test_output_of_one_mesh_lands_in_the_cell_that_called(trainers: Kernel) -> None:
    called = trainers.start("waiting = trainers.wait.call(1)")
    assert "[0-3] waits" in trainers.wait(called, "[0-3] waits")
    assert "waits" not in trainers.run("waiting.get()")


def test_an_interrupt_reaches_the_endpoints(trainers: Kernel) -> None:
    cell = trainers.start("trainers.wait.call(1000).get()")
    trainers.wait(cell, "trainers.wait: ranks 0-3 run it")
    trainers.interrupt()
    shown = trainers.wait(cell).replace("\x1b[39m", "")
    assert "KeyboardInterrupt: interrupted trainers.wait" in shown
    assert "[0-3] waits" in shown
    assert "run it" not in shown, "what is not true any more does not stay"
    assert "rank 3: 3" in trainers.run("trainers.step.call(1).get()")


def test_an_interrupt_reaches_what_a_cell_awaits_once(trainers: Kernel) -> None:
    trainers.run("import asyncio")
    cell = trainers.start("await asyncio.gather(trainers.wait.call(1000), trainers.wait.call(1000))")
    trainers.wait(cell, "[0-3] waits")
    trainers.interrupt()
    assert "CancelledError: interrupted trainers.wait" in trainers.wait(cell).replace("\x1b[39m", "")
    assert "rank 3: 3" in trainers.run("await trainers.step.call(1)"), "pressed once: no rank was killed"


def test_a_call_that_waits_says_behind_what(trainers: Kernel) -> None:
    trainers.run("trainers.slice(hosts=0, procs=1).wait.broadcast(1000)")
    cell = trainers.start("trainers.step.call(1).get()")
    shown = trainers.wait(cell, "trainers.step: rank 1 runs 'wait'")
    assert "1 message waits there" in shown
    trainers.interrupt()
    trainers.wait(cell)
    trainers.run("mesh.restart()")


def test_a_rank_that_dies_fails_the_call_and_is_named(trainers: Kernel) -> None:
    shown = trainers.run("trainers.slice(hosts=1, procs=1).die.call_one().get(60)")
    assert "SupervisionError" in shown
    assert "(node1): rank 3 died: killed by signal 9 (SIGKILL)" in shown
    trainers.run("mesh.restart()")


def test_a_failed_init_is_told_by_the_first_call(trainers: Kernel) -> None:
    trainers.run("class Broken(Trainer):\n    def __init__(self): raise ValueError('no model')")
    spawned = trainers.start("broken = mesh.spawn('broken', Broken)")
    assert "no model" in trainers.wait(spawned, "no model")
    assert "no model" in trainers.run("broken.step.call(1).get(60)")


def test_the_same_name_replaces(trainers: Kernel) -> None:
    trainers.run("old = trainers; trainers = mesh.spawn('trainers', Trainer, lr=1.0)")
    assert "1.0" in trainers.run('trainers.step.call(1).get()\n%mesh pull actors["trainers"].lr')
    assert "spawned new actors under its name" in trainers.run("old.step.call(1).get(60)")


def test_a_new_kernel_finds_them(trainers: Kernel) -> None:
    trainers.run("trainers.step.call(1).get()")
    trainers.restart()
    trainers.run("%load_ext monarch_nb\nimport monarch_nb")
    trainers.run('trainers = monarch_nb.attach("dev").actors["trainers"]')
    shown = trainers.run("trainers.step.call(5).get()")
    assert "rank 3: 15" in shown
    assert "[0-3] step 5" in shown
    assert "its actors are trainers" in trainers.run('monarch_nb.attach("dev").actors["graders"]')


def test_a_kernel_that_is_restarted_leaves_endpoints_at_work(trainers: Kernel) -> None:
    trainers.run(PATIENT)
    cell = trainers.start("trainers.wait.call(1000).get()")
    trainers.wait(cell, "[0-3] waits")
    trainers.restart()
    trainers.run("%load_ext monarch_nb")
    assert "wait for the notebook" in trainers.run("%mesh actors")
    trainers.run("%mesh restart")


def test_more_meshes_beside_main(trainers: Kernel) -> None:
    trainers.run(
        'graders = monarch_nb.attach("dev").spawn_procs({"gpus": 2}, name="evaluators", env={"ROLE": "judge"})'
    )
    trainers.run("g = graders.spawn('graders', Trainer, lr=0)")
    shown = trainers.run("g.step.call(1).get(60)")
    assert "ValueMesh({hosts: 2, gpus: 2})" in shown
    eventually(lambda: "graders   Trainer  evaluators  0-3" in trainers.run("%mesh actors"))
    trainers.run("graders.stop().get(60)")
    assert "evaluators" not in trainers.run("%mesh actors")
    assert "already been stopped" in trainers.run("graders.spawn('graders', Trainer, lr=0)")


def test_actors_of_the_kernel(trainers: Kernel) -> None:
    trainers.run("here = this_proc().spawn('here', Trainer, lr=0)")
    assert trainers.run("here.step.call_one(3).get()").startswith("step 3")


@pytest.mark.parametrize("call", ["trainers.quiet.call().get()", "await trainers.quiet.call()"])
def test_a_call_that_prints_nothing_shows_its_value_alone(trainers: Kernel, call: str) -> None:
    assert trainers.run(call) == "ValueMesh({hosts: 2, procs: 2}):\n  ranks 0-3: 1"
    assert trainers.run(f"{call}.sizes" if "get" in call else f"({call}).sizes") == "{'hosts': 2, 'procs': 2}"


def test_a_second_press_says_which_ranks_lost_their_actors(trainers: Kernel) -> None:
    trainers.run(STUBBORN)
    cell = trainers.start("stubborn.wait.call().get()")
    trainers.wait(cell, "never stops")
    trainers.interrupt()
    trainers.wait(cell, "pressed once")
    trainers.interrupt()
    shown = trainers.wait(cell).replace("\x1b[39m", "")
    assert "killed and restarted rank 1: their variables and actors are gone: spawn these again" in shown


def test_status_says_what_actors_do(trainers: Kernel) -> None:
    cell = trainers.start("trainers.slice(hosts=0).wait.broadcast(1000)")
    trainers.wait(cell, "[0-1] waits")
    assert "running trainers.wait" in trainers.run("%mesh status")
    assert "idle" not in trainers.run("%mesh stacks -t 0")
    trainers.run("%mesh interrupt")


def test_mesh_interrupt_reaches_what_was_left_and_drops_what_waits(nested: Kernel) -> None:
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


def test_an_interrupted_call_that_had_not_begun_is_answered_at_once(trainers: Kernel) -> None:
    called = trainers.start("trainers.wait.broadcast(1000)")
    trainers.wait(called, "[0-3] waits")
    cell = trainers.start("trainers.step.call(1).get()")
    trainers.wait(cell, "1 message waits on each")
    trainers.interrupt()
    shown = trainers.wait(cell).replace("\x1b[39m", "")
    assert "KeyboardInterrupt: interrupted trainers.step" in shown
    assert "trainers.step: ranks 0-3 run 'wait'" in shown, "what the interrupt was for stays"
    assert "waits there" not in trainers.run("%mesh actors")
    trainers.run("%mesh interrupt")


def test_mesh_interrupt_reaches_what_other_cells_called(trainers: Kernel) -> None:
    called = trainers.start("waiting = trainers.wait.call(1000)")
    trainers.wait(called, "[0-3] waits")
    assert "interrupted run 2, cell [4], on ranks 0-3" in trainers.run("%mesh interrupt")
    assert "was interrupted on ranks 0-3" in trainers.run("waiting.get(60)")


STUBBORN = """
class Stubborn(Actor):
    @endpoint
    def wait(self):
        print("never stops", flush=True)
        while True:
            try:
                time.sleep(1000)
            except KeyboardInterrupt:
                print("pressed once", flush=True)

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


def test_what_nested_calls_print_on_another_mesh_lands_in_the_cell(nested: Kernel) -> None:
    shown = nested.run("callers.go.call(3).get()")
    assert "goes" in shown
    assert "[0-1] step 3" in shown
    cell = nested.start("callers.leave.broadcast(4)")
    assert "[0-1] step 4" in nested.wait(cell, "[0-1] step 4")
    nested.restart()
    nested.run("%load_ext monarch_nb\nimport monarch_nb")
    nested.run('dev = monarch_nb.attach("dev"); callers = dev.actors["callers"]')
    assert "[0-1] step 5" in nested.run("callers.go.call(5).get()"), "also from a kernel that has not spawned them"
    nested.run('others = dev.spawn_procs({"gpus": 1}, name="evaluators")')
