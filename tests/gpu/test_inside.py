"""Profiles and memory of a rank with a real GPU."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed

GIB = 1 << 30
TRAIN = """
import torch
model = torch.nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.ones(64, 1024, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_profile_tells_the_time_of_the_gpu(mesh: Mesh, tmp_path: Path) -> None:
    mesh.run(TRAIN)
    run = mesh.run("train(8)", instruments={"torch-profile": {"steps": 3}})
    report = mesh.profile_of(run, to=tmp_path)
    (rank,) = report.ranks
    assert (rank.on_device, rank.steps) == (True, 3)
    assert rank.shares.compute > 0
    assert {"aten::addmm", "aten::mm"} & {operator.name for operator in rank.operators}
    assert mesh.run("torch.autograd._profiler_enabled()").values == [False]


def test_memory_of_the_gpu_and_of_a_failed_allocation(mesh: Mesh) -> None:
    mesh.run(f"{TRAIN}\ntrain(1)\nkept = torch.empty({GIB}, dtype=torch.uint8, device=device)\ndel kept")
    (rank,) = mesh.memory().ranks
    assert rank.gpu is not None
    assert rank.held is not None
    assert rank.gpu.greatest >= rank.gpu.allocated + GIB
    assert rank.gpu.fragmentation >= rank.gpu.largest_free >= GIB
    assert rank.gpu.total > rank.gpu.free
    assert rank.held.largest[0].name == "model.weight"
    assert rank.held.largest[0].facts == "[1024, 1024] float32 cuda"

    grow = f"grow(torch.empty({GIB} // 4, device=device))"
    mesh.run("def grow(batch):\n    return torch.empty(1 << 50, device=device)")
    with pytest.raises(RunFailed, match="out of memory") as failed:
        mesh.run(grow)
    (rank,) = mesh.memory_of(failed.value.run).ranks
    assert rank.held is not None
    assert (rank.held.largest[0].name, rank.held.largest[0].size_bytes) == ("grow(): batch", GIB)


def test_memory_without_tensors_is_given_back_and_variables_stay(mesh: Mesh) -> None:
    mesh.run(f"{TRAIN}\ntrain(1)\nkept = torch.empty({GIB}, dtype=torch.uint8, device=device)\ndel kept")
    (before,) = mesh.memory().ranks
    report = mesh.memory(release_gpus=True)
    (after,) = report.ranks
    assert before.gpu is not None
    assert after.gpu is not None
    assert after.released >= GIB
    assert after.gpu.free >= before.gpu.free + GIB
    assert "rank 0 gave back" in str(report)
    mesh.run("train(1)")


def test_the_history_of_memory_is_a_snapshot(mesh: Mesh, tmp_path: Path) -> None:
    run = mesh.run(f"{TRAIN}\ntrain(2)", instruments={"memory-history": {}})
    ((path,), problems) = mesh.memory_history_of(run, to=tmp_path)
    assert not problems
    snapshot = pickle.loads(path.read_bytes())
    assert any(trace for trace in snapshot["device_traces"])
