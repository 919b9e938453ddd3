# Run by torchrun, and by monarch_nb as a script: an ordinary DDP training, which says when its first step is over.
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(128, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    for step in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            print(f"first {time.time()}\n", end="", flush=True)  # one write: lines of several ranks do not mix
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
