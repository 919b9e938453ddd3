"""`%mesh memory` on live ranks: idle, computing, stopped, and after an allocation that failed."""

from __future__ import annotations

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed

MODEL = """
import torch
model = torch.nn.Linear(300, 200, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.ones(2, 300)).sum().backward()
optimizer.step()
if rank >= 6:
    extra = torch.zeros(90_000)
"""
GROW = """
def grow(batch):
    huge = torch.zeros(200_000)
    return torch.empty(1 << 50)
if rank == 3:
    grow(torch.ones(100_000))
"""


def names(mesh: Mesh) -> dict[int, list[tuple[str, int]]]:
    """Return the largest tensors with names, by rank."""
    return {
        each.rank: [(tensor.name, tensor.size_bytes) for tensor in each.held.largest if tensor.name]
        if each.held
        else []
        for each in mesh.memory().ranks
    }


def test_ranks_tell_what_holds_their_memory(fresh_mesh: Mesh) -> None:
    fresh_mesh.run(MODEL)
    found = names(fresh_mesh)
    held = [
        ("model.weight", 240_000),
        ("model.weight.grad", 240_000),
        ("optimizer.state[model.weight]['momentum_buffer']", 240_000),
    ]
    assert found[0] == held
    assert found[7] == [*held, ("extra", 360_000)][-1:] + held
    report = fresh_mesh.memory()
    assert [row[0] for row in report.figure_rows()] == ["rank", "0-5", "6-7"]
    assert all(each.pss > 2**20 and each.greatest_rss >= each.pss for each in report.ranks)


def test_computing_ranks_tell_numbers_only_and_stopped_ones_their_variables(fresh_mesh: Mesh) -> None:
    fresh_mesh.run("import torch, threading\ngo = threading.Event()")
    waits = fresh_mesh.slice(hosts=0).submit("go.wait(60)")
    stops = fresh_mesh.slice(hosts=1).submit(
        "def step(batch):\n    breakpoint()\nstep(torch.ones(1000))", on_breakpoint="stop"
    )
    debugger = Debugger(fresh_mesh)
    try:
        eventually(
            lambda: len(debugger.stops()) == 4 and sum(each.state == "running" for each in fresh_mesh.status()) == 8
        )
        report = fresh_mesh.memory()
        assert [each.held is None for each in report.ranks] == [True] * 4 + [False] * 4
        assert all(each.pss > 2**20 for each in report.ranks)
        assert report.problems == ("ranks 0-3 compute: their tensors are not known; --when-idle waits for the end",)
        assert names(fresh_mesh)[5] == [("batch", 4000)]
    finally:
        debugger.continue_all()
        waits.interrupt()
        assert stops.wait(TIMEOUT_S)
        assert waits.wait(TIMEOUT_S)


def test_what_was_held_when_an_allocation_failed(mesh: Mesh) -> None:
    mesh.run("import torch")
    with pytest.raises(RunFailed) as failed:
        mesh.run(GROW)
    report = mesh.memory_of(failed.value.run)
    (rank,) = report.ranks
    assert rank.rank == 3
    assert rank.held is not None
    found = {each.name: each.size_bytes for each in rank.held.largest}
    assert found["grow(): huge"] == 800_000
    assert found["grow(): batch"] == 400_000
    assert not mesh.memory_of(failed.value.run).ranks
    assert "huge" not in str(mesh.memory())  # nothing was kept alive by the look


def test_a_notebook_shows_it(attached: Kernel) -> None:
    attached.run("%%mesh\nimport torch\nbig = torch.zeros(3_000_000)")
    assert "no rank that answered uses a GPU" in attached.run("%mesh memory --release-gpus")
    shown = attached.run("%mesh memory")
    assert "11 MiB" in shown
    assert "[3000000] float32 cpu" in shown
    shown = attached.run(f"%%mesh\n{GROW}")
    assert "the memory as it was before the allocation of 4096 TiB that failed:" in shown
    assert shown.index("grow(): huge") < shown.index("DefaultCPUAllocator: can't allocate memory")
