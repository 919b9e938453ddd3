# Run by torchrun, and as a cell by monarch_nb.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"ended {time.time()}\n", end="", flush=True)  # one write: lines of several ranks do not mix
