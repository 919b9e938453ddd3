"""End to end: all nodes of a reservation are away, and the notebook that holds it says what it knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.hosts.network import Host
from integration.kernels import Kernel

WAITS = """%%mesh
import time
print("under way")
while True:
    time.sleep(0.05)"""


@pytest.fixture
def kernel(apart: Lab, project: Path) -> Iterator[Kernel]:
    """A notebook's, with a reservation of two of the three hosts and a cell that runs on them."""
    made = Kernel(project / "train.ipynb")
    made.run("%load_ext monarch_nb.notebook")
    assert "2 nodes × 1 proc" in made.run("%mesh reserve dev --nodes 2 --procs 1")
    yield made
    made.kill()


def lost(kernel: Kernel, cell: str, host: Host) -> str:
    host.pull_the_cable()
    return kernel.wait(cell, f"{host.name} unreachable since")


@pytest.mark.slow
def test_what_the_kernel_knows_is_said(kernel: Kernel, apart: Lab, project: Path) -> None:
    first, second = (one.host for one in apart.allocators[:2] if one.host)
    cell = kernel.start(WAITS)
    kernel.wait(cell, "under way")
    assert "until then -t leaves them out; %mesh replace puts a free node" in lost(kernel, cell, first)
    lost(kernel, cell, second)
    said = kernel.wait(cell, "%mesh reserve dev --replace begins anew on others")
    assert said.count("the output of their ranks follows here when they answer again") == 1, "once for both nodes"
    assert "%mesh replace" not in said, "no node is left that could be told of another"
    kernel.interrupt()
    [interrupted] = re.findall("KeyboardInterrupt.*", kernel.wait(cell))
    assert "ranks 0-1 can not be reached and go on: " in interrupted
    assert "(%mesh status)" in interrupted

    status = kernel.run("%mesh status")
    assert "dev · 2 nodes × 1 proc · no node answers" in status
    for host in (first, second):
        assert re.search(rf"{host.name} +unreachable, was running run 1, cell \[\d+\] ", status)
        assert re.search(rf"{host.name} unreachable since [0-9:]{{8}}", status)
    assert status.count("%mesh reserve dev --replace begins anew") == 1
    for line in ("%mesh interrupt", "%mesh logs"):
        away = rf"'dev' is held, but {first.name} \(since \S+\), {second.name} \(since \S+\) do not answer: "
        assert re.search(rf"{away}its ranks go on \(run 1, cell \[\d+\], sent at", kernel.run(line))
    anew = Kernel(project / "eval.ipynb")
    anew.run("%load_ext monarch_nb.notebook")
    listed = anew.run("%mesh list")
    anew.kill()
    away = f"{first.name}, {second.name} do not answer: reservations that only they hold are not shown"
    assert f"{away} (dev of yours, when they last did)" in listed

    for host in (first, second):
        host.plug_it_in()
    kernel.run("%mesh interrupt")
    assert "2 of 2 ranks alive" in kernel.run("%mesh status")
    assert "released 2 nodes" in kernel.run("%mesh release")
