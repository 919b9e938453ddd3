"""What counts as a step where others call the optimizer: a GradScaler, and the stages of a pipeline."""

from __future__ import annotations

import uuid
from pathlib import Path

from integration.worker.harness import TemplateProcess
from integration.worker.test_autosaves import arm, ok, saves

PIPELINE = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("gloo")
torch.manual_seed(rank)
stage_model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(stage_model.parameters())
stage = PipelineStage(stage_model, rank, world_size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.rand(8, 4))
        else:
            schedule.step(target=torch.rand(8, 4), losses=[])
        optimizer.step()
"""
LOADED = """
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import LoadRequest
_ = entry.load(LoadRequest({directory!r}, names={names!r}), {secret!r}, range(world_size))
int(optimizer.state_dict()["state"][0]["step"])
"""


def loaded(path: Path, *names: str) -> str:
    return LOADED.format(directory=str(path), names=names, secret=uuid.uuid4().hex)


def test_a_schedule_of_a_pipeline_is_one_step(template: TemplateProcess, tmp_path: Path) -> None:
    ranks = template.fork_mesh(2)
    ok(ranks, PIPELINE)
    arm(ranks, tmp_path, every_steps=2)
    ok(ranks, "train(5)")
    first, second = saves(tmp_path)
    for path, steps in ((first, 2), (second, 4)):
        assert ok(ranks, loaded(path, "stage_model", "optimizer")) == [steps, steps]
