"""End to end: a notebook here, a pool of three other hosts with file systems of their own, and a cable that is pulled
while a cell trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.kernels import Kernel

TRAINS = """%%mesh
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from model import width
kept = rank + 10
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(width, width))
step = 0
while True:
    model(torch.ones(4, width)).sum().backward()
    step += 1
    if rank == 0 and step % 10 == 0:
        print("step", step)"""

AGAIN = """%%mesh
dist.init_process_group("gloo")
model = DistributedDataParallel(model.module)
model(torch.ones(4, width)).sum().backward()
total = torch.tensor([kept])
dist.all_reduce(total)
dist.destroy_process_group()
f"kept {kept} of {int(total)}" """


@pytest.fixture
def kernel(apart: Lab, project: Path) -> Iterator[Kernel]:
    """A notebook's, with a project that the hosts do not see."""
    made = Kernel(project / "train.ipynb")
    yield made
    made.kill()


def test_a_cable_is_pulled_while_a_cell_trains(kernel: Kernel, apart: Lab) -> None:
    lost = apart.allocators[1].host
    assert lost is not None
    kernel.run("%load_ext monarch_nb.notebook")
    assert "3 nodes × 1 proc" in kernel.run("%mesh reserve dev --nodes 3 --procs 1")
    cell = kernel.start(TRAINS)
    kernel.wait(cell, "step 20")
    lost.pull_the_cable()
    kernel.wait(cell, f"{lost.name} unreachable since")
    kernel.interrupt()
    said = kernel.wait(cell)
    assert "interrupted ranks 0,2; process group aborted" in said
    assert f"rank 1 can not be reached and goes on: {lost.name} does not answer" in said
    assert "%mesh replace" not in said, "the pool has no other node"
    assert f"{lost.name} unreachable since" in kernel.run("%mesh status")
    assert "Out[2]: 12" in kernel.run("%%mesh -t 0,2\nkept")
    lost.plug_it_in()
    kernel.run("%mesh interrupt")  # rank 1 trains on: it waits for the others
    text = kernel.run(AGAIN)
    for rank in range(3):
        assert f"Out[{rank}]: 'kept {rank + 10} of 33'" in text
    assert "released 3 nodes" in kernel.run("%mesh release")
