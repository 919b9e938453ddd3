"""Lightning, unmodified, on 2 ranks whose template has imported it; more of it in the night."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from integration.live import Recorder
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh

pytestmark = [
    pytest.mark.shape(nodes=1, procs=2, preload=["torch", "lightning"]),
    pytest.mark.skipif(find_spec("lightning") is None, reason="there is no lightning"),  # ranks import it
]

MODEL = """
import logging, warnings
warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
import torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset

class Regression(L.LightningModule):
    def __init__(self, lr=0.05, batch_size=4):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def train_dataloader(self):
        x = torch.rand(64, 8, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=self.hparams.batch_size)

quiet = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)

def fit(model=None, /, **options):
    model = model or Regression()
    trainer = L.Trainer(**quiet | {"max_epochs": 1} | options)
    trainer.fit(model)
    return trainer, model

def weights(model):
    return sum(parameter.double().sum().item() for parameter in model.parameters())
"""


def values(mesh: Mesh, code: str) -> list[Any]:
    """Run a cell that must say nothing of training apart; return what it comes to on each rank."""
    recorder = Recorder()
    run = mesh.run(code, listener=recorder)
    assert not [notice for notice in recorder.of(events.Notice) if "model of their own" in notice.text]
    return run.values


def same(mesh: Mesh, code: str) -> Any:
    """Run a cell that comes to the same on all ranks."""
    first, *others = values(mesh, code)
    assert all(other == first for other in others)
    return first


def test_a_fit_takes_all_ranks_and_so_does_the_next(mesh: Mesh) -> None:
    mesh.run(MODEL)
    facts = "type(trainer.strategy).__name__, trainer.world_size, len(model.losses), weights(model)"
    first = same(mesh, f"trainer, model = fit()\n{facts}")
    assert first[:3] == ("DDPStrategy", 2, 8), "each rank has half of the 16 batches"
    assert same(mesh, f"group = dist.group.WORLD\ntrainer, model = fit()\n{facts}") == first
    assert same(mesh, "group is dist.group.WORLD") is True
