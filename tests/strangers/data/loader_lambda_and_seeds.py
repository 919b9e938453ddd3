# Lambdas, generators and worker seeds of a DataLoader.
# ways: script live cell
import torch
from torch.utils.data import DataLoader

seen = []
loader = DataLoader(
    range(6),
    batch_size=2,
    shuffle=True,
    num_workers=1,
    generator=torch.Generator().manual_seed(5),
    collate_fn=lambda batch: batch,
    worker_init_fn=lambda worker: torch.manual_seed(worker),
)
print(list(loader), list(loader))
