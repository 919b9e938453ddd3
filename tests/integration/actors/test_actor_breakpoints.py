"""Endpoints that stop at `breakpoint()`: the cell, or the program, that waits for them asks."""

from __future__ import annotations

import pytest

from integration.kernels import Kernel
from integration.stopped import DBG, PDB, all_asked, type_in

ROW = "| trainers "
ACTORS = """
import asyncio
import monarch_nb
from monarch_nb.actor import Actor, Channel, current_rank, endpoint
mesh = monarch_nb.attach("dev").mesh

class Trainer(Actor):
    @endpoint
    def step(self, n):
        loss = n + current_rank().rank
        breakpoint()
        return loss
    @endpoint
    def bad(self, batch):
        raise ValueError("bad rank")
    @endpoint
    def fine(self): return "fine"

trainers = mesh.spawn("trainers", Trainer)
"""


@pytest.fixture
def trainers(kernel: Kernel) -> Kernel:
    """A kernel with `trainers` on the 4 ranks of "dev"."""
    assert "Error" not in kernel.run(ACTORS)
    return kernel


def test_a_cell_that_waits_for_a_call_asks(trainers: Kernel) -> None:
    cell = trainers.start("print(list(trainers.step.call(10).get().values()))")
    shown = all_asked(trainers, cell, 4, ROW)
    assert shown.count(ROW) == 4
    assert shown.count("| Cell In[3].step ") == 4
    assert "-> breakpoint()" in type_in(trainers, cell, "attach trainers 2", PDB)
    type_in(trainers, cell, "loss = 50", PDB)
    type_in(trainers, cell, "detach", DBG)
    assert "[1] 11\n[2] 50" in type_in(trainers, cell, "cast trainers ranks(:) p loss", DBG)
    trainers.answer("continue")
    assert "[10, 11, 50, 13]" in trainers.wait(cell)
    cell = trainers.start("print(trainers.slice(hosts=1, procs=0).step.call_one(7).get(timeout=60))")
    assert trainers.asked(cell, DBG).count("| trainers ") == 1
    trainers.answer("c")
    assert "\n7\n" in trainers.wait(cell)


def test_a_cell_that_awaits_asks_too(trainers: Kernel) -> None:
    cell = trainers.start(
        "steps = [trainers.slice(hosts=host, procs=0).step.call_one(host) for host in (0, 1)]\n"
        "print(await asyncio.gather(*steps))"
    )
    all_asked(trainers, cell, 2, ROW)
    trainers.answer("continue")
    assert "[0, 1]" in trainers.wait(cell)
    cell = trainers.start("print(list((await trainers.step.call(1)).values()))")
    all_asked(trainers, cell, 4, ROW)
    trainers.interrupt()
    trainers.wait(cell, "stay where they are")
    trainers.interrupt()
    trainers.wait(cell)
    assert "fine" in trainers.run("print(trainers.fine.call().get())"), "what the cell has called is interrupted"


def test_headless_cells_go_on_or_fail(trainers: Kernel) -> None:
    step = "print(list(trainers.step.call(1).get().values()))"
    text = trainers.run(step, headless=True)
    assert "[stderr:0-3] breakpoint() at Cell In[3]:" in text
    assert "passed: nobody can answer here" in text
    assert "[1, 2, 3, 4]" in text
    assert "breakpoint() fails" in trainers.run("%mesh debug --on-breakpoint=error")
    assert "the run fails there" in trainers.run(step)
    assert "breakpoint() is passed" in trainers.run("%mesh debug --on-breakpoint=go-on")
    assert "[1, 2, 3, 4]" in trainers.run(step)


def test_after_an_error_of_an_endpoint(trainers: Kernel) -> None:
    assert "no error to look at" in trainers.run("%mesh debug --post-mortem")
    assert "bad rank" in trainers.run("trainers.slice(hosts=1).bad.call(3).get()")
    cell = trainers.start("%mesh debug --post-mortem")
    shown = trainers.asked(cell, DBG)
    assert shown.count("bad (error)") == 2
    assert shown.count("| trainers ") == 2
    assert "[2-3] 3" in type_in(trainers, cell, "cast trainers ranks(:) p batch", DBG)
    assert "-> raise ValueError" in type_in(trainers, cell, "attach trainers 3", PDB)
    type_in(trainers, cell, "detach", DBG)
    trainers.answer("quit")
    trainers.wait(cell)
    assert "no rank has stopped" in trainers.run("%mesh debug")
    trainers.run("trainers.fine.call().get()")
    assert "no error to look at" in trainers.run("%mesh debug --post-mortem"), "what it kept alive is released"
