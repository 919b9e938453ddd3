# DDP's usual end: a last barrier, the group destroyed, in a finally block.
# procs: 2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
try:
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    dist.barrier()
    print("total", total.item())
finally:
    dist.destroy_process_group()
print(dist.is_initialized())
