"""Processes that are set up before they have actors: `spawn_procs(bootstrap=…)` from a notebook."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.kernels import Kernel

COUNTER = """
import os, time
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint, this_host, this_proc

class Counter(Actor):
    def __init__(self, value):
        self.value = value

    @endpoint
    def add(self, n):
        self.value += n
        return self.value, os.environ.get("WHO")

def set_up():
    os.environ["WHO"] = "set up"
    print("sets up", this_proc().spawn("foo", Counter, 10).add.call_one(1).get()[0])

def hang():
    print("hangs", flush=True)
    if current_rank().rank == 1:
        time.sleep(1000)

def fail():
    if current_rank().rank == 1:
        raise OSError("no scratch disk")
"""


@pytest.fixture
def counters(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel with what processes may be set up with."""
    assert "Error" not in kernel.run(COUNTER)
    yield kernel
    kernel.run("procs.stop().get(60)")


def test_a_bootstrap_prints_in_its_cell_and_one_that_raises_names_its_ranks(counters: Kernel) -> None:
    shown = counters.run("procs = this_host().spawn_procs(bootstrap=set_up); procs.initialized.get(60)")
    assert "sets up 11" in shown
    counters.run("procs.stop().get(60)")
    cell = counters.start(
        'procs = this_host().spawn_procs({"gpus": 2}, bootstrap=fail)\n'
        'procs.spawn("counters", Counter, 0).add.call(5).get(60)'
    )
    counters.wait(cell)
    told = "bootstrap.run failed on rank 1: OSError: no scratch disk; no actor can be made there"
    shown = counters.wait(cell, told)  # which comes by itself
    assert "counters.add failed on rank 1 of 2" in shown
    assert "did not succeed" in shown
    assert "in fail\n" in shown
    assert "bootstrap.run failed on rank 1 of 2" in counters.run("procs.initialized.get(60)")
    assert "rank 0: (5" in counters.run('procs.slice(gpus=0).spawn("others", Counter, 0).add.call(5).get(60)')


def test_a_bootstrap_that_hangs_is_said_and_interrupted(counters: Kernel) -> None:
    cell = counters.start(
        'procs = this_host().spawn_procs({"gpus": 2}, bootstrap=hang)\n'
        'procs.spawn("counters", Counter, 0).add.call(5).get()'
    )
    shown = counters.wait(cell, "counters.add: rank 1 is not made yet, while the bootstrap runs at Cell In[")
    assert "bootstrap.run: rank" in shown
    counters.interrupt()
    shown = counters.wait(cell).replace("\x1b[39m", "")
    assert "KeyboardInterrupt: interrupted counters.add" in shown
    shown = counters.run('procs.spawn("counters", Counter, 0).add.call(5).get(60)')
    assert "did not succeed" in shown
    assert "Interrupt" in shown or "Cancelled" in shown
