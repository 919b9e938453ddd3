"""Saves of what is on a GPU: a training goes on where it was, and a save in the background has what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.client.meshes.mesh import Mesh

TRAIN = """
import torch
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("nccl")
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.5), torch.nn.Linear(128, 1)).to(device)
{wrap}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=2)
losses = []
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(32, 64, device=device)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses[-steps:], scaler.get_scale()
"""
DDP = "model = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend='eager')"
FSDP2 = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notebook's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("wrap", ["", DDP, FSDP2], ids=["plain", "ddp", "fsdp2"])
def test_a_training_goes_on_where_it_was(mesh: Mesh, wrap: str) -> None:
    """Dropout and batches come of the GPU's random state; the scaler's scale has grown."""
    code = TRAIN.format(wrap=wrap)
    mesh.run(code)
    mesh.run("train(5)")
    saved = mesh.save("a")
    assert {"model", "optimizer", "scaler", "losses", "random_states"} <= {part.name for part in saved.parts}
    expected = mesh.run("train(5)").values
    mesh.restart()
    mesh.run(code)
    mesh.load("a")
    assert mesh.run("len(losses), next(model.parameters()).device.type").values == [(5, "cuda")]
    assert mesh.run("train(5)").values == expected, "bit for bit"
    mesh.run("dist.destroy_process_group()")


def test_a_save_in_the_background_has_what_was_there_when_it_was_asked_for(mesh: Mesh) -> None:
    mesh.run("import torch\nbig = torch.full((1 << 28,), 3.0, device=device)")
    assert mesh.save("a", background=True).background
    mesh.run("big.zero_()")
    mesh.save("a", ["big"])
    mesh.load("a/0001")
    assert mesh.run("big.min().item(), big.max().item(), big.device.type").values == [(3.0, 3.0, "cuda")]


def test_a_training_is_saved_by_itself(mesh: Mesh) -> None:
    mesh.run(TRAIN.format(wrap=DDP))
    mesh.autosave("a", every="4steps")
    mesh.run("train(10)")
    saves = mesh.saves("a")
    assert len(saves) == 2
    mesh.load(saves[0].path)
    assert mesh.run("int(optimizer.state[next(model.parameters())]['step'])").values == [8]
    mesh.run("dist.destroy_process_group()")
