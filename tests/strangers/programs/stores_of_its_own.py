# Groups that a program forms over a file, and over a store that its first rank hosts.
# procs: 2
import datetime
import os
import socket

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=size)
told = [None]
if rank == 0:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        told = [probe.getsockname()[1]]
dist.broadcast_object_list(told)
dist.destroy_process_group()
store = dist.TCPStore("127.0.0.1", told[0], size, rank == 0, timeout=datetime.timedelta(seconds=60))
store.set(f"rank {rank}", str(rank * 7))
print(store.get("rank 0"), store.get("rank 1"))
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print(total.item(), dist.is_torchelastic_launched(), dist.get_node_local_rank())
dist.barrier()
dist.destroy_process_group()
if rank == 0 and os.path.exists("rendezvous"):
    os.remove("rendezvous")
