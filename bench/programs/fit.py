# Run by torchrun, and as a cell by monarch_nb: a small LightningModule trained with DDP.
import logging
import time
import warnings

import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


generator = torch.Generator().manual_seed(0)
inputs = torch.randn(256, 16, generator=generator)
batches = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
trainer = Trainer(
    accelerator="cpu",
    devices=4,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), batches)
print(f"fitted {time.time()}\n", end="", flush=True)  # one write: lines of several ranks do not mix
