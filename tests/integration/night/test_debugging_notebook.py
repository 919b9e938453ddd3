"""notebooks/debugging.ipynb, executed by a client that types what its text says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from integration.kernels import Kernel, opened
from integration.pools import PoolOfMany
from integration.stopped import DBG, PDB, all_asked, type_in

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "debugging.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def own_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel of the notebook, on a pool of 4 nodes × 4 procs."""
    pool = PoolOfMany(nodes=4, procs=4, preload="torch")
    with pool.closing(), pool.in_use(), opened(Path(shutil.copy(NOTEBOOK, tmp_path))) as kernel:
        yield kernel


def typed(kernel: Kernel, cell: str, *lines: tuple[str, str]) -> list[str]:
    """Type lines, each at the prompt before, and wait for the prompt that follows; return what each shows."""
    return [type_in(kernel, cell, line, prompt) for line, prompt in lines]


def test_ranks_of_a_mesh_that_stop_at_different_lines(own_kernel: Kernel) -> None:
    sources = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    load, reserve, define, work, post_mortem, go_on, endpoint, release = sources
    kernel = own_kernel
    kernel.run(load)
    assert "16 ranks ready" in kernel.run(reserve)
    kernel.run(define)

    cell = kernel.start(work)
    table = all_asked(kernel, cell, 16)
    lines = dict(re.findall(r"\| cell +\| +(\d+) \|.*\| +(\d+) \|", table))
    assert len(lines) == 16
    assert [lines[str(rank)] == lines["0"] for rank in range(4)] == [True, False, False, False]
    attached = typed(kernel, cell, ("attach 13", PDB), ("n", PDB), ("s", PDB), ("n", PDB), ("batch", PDB))
    assert "Attached to debug session for cell 13" in attached[0]
    assert "-> return normalise(batch).sum()" in attached[1]
    assert "normalise()" in attached[2]
    assert "tensor([13., 14., 15., 16.])" in attached[4]
    detached, asked, indices, _, listed = typed(
        kernel,
        cell,
        ("detach", DBG),
        ("cast 0,4 p batch", DBG),
        ("cast 2:11:4 p index", DBG),
        ("cast hosts=2:4,procs=0 n", DBG),
        ("list", DBG),
    )
    assert "Detached from debug session for cell 13" in detached
    assert "[0] tensor([0., 1., 2., 3.])\n[4] tensor([4., 5., 6., 7.])" in asked
    assert "[2] 4\n[6] 12\n[10] 20" in indices
    later = dict(re.findall(r"\| cell +\| +(\d+) \|.*\| +(\d+) \|", listed))
    moved = [rank for rank in range(16) if later[str(rank)] != lines[str(rank)]]
    assert moved == [8, 12, 13]
    kernel.answer("continue")
    failed = kernel.wait(cell)
    assert re.search(r"no item 4–\d+ in a batch of 4", failed)
    assert "4 of 16 ranks failed" in failed

    cell = kernel.start(post_mortem)
    assert kernel.asked(cell, DBG).count("pick (error)") == 4
    _, index, _, rank, _ = typed(
        kernel, cell, ("attach 2", PDB), ("p index", PDB), ("u", PDB), ("p rank", PDB), ("detach", DBG)
    )
    assert "4" in index
    assert "2" in rank
    kernel.answer("quit")
    kernel.wait(cell)
    assert "passed: nobody can answer here" in kernel.run(go_on)
    cell = kernel.start(endpoint)
    assert all_asked(kernel, cell, 16, "| counters ").count("| counters ") == 16
    totals, *_ = typed(
        kernel,
        cell,
        ("p total", DBG),
        ("attach 5", PDB),
        ("total = 100", PDB),
        ("detach", DBG),
    )
    assert "[15] 25" in totals
    kernel.answer("continue")
    assert "[10, 11, 12, 13, 14, 100, 16," in kernel.wait(cell)
    assert "released" in kernel.run(release)
    kernel.keep(NOTEBOOK)
