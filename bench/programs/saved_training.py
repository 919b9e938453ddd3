"""A training whose steps are timed, as the cells of a notebook: DDP with Gloo and Adam."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Linear(512, 512) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
data = torch.rand(32, 512)


def train(steps: int) -> float:
    """Return how long so many steps take, in seconds."""
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(steps):
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    return time.perf_counter() - began_s


train(5)
