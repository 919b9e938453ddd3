# Run by torchrun, and as a cell by monarch_nb: every rank hangs in an all_reduce.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
other = dist.new_group()
model = torch.nn.Linear(256, 256)
with torch.no_grad():
    model.weight.fill_(dist.get_rank())
print("hangs\n", end="", flush=True)  # one write: lines of several ranks do not mix
dist.all_reduce(torch.ones(1), group=other if dist.get_rank() == 0 else None)
