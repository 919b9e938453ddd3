# torch.multiprocessing.spawn forms a group of its own, as DDP's tutorials do.
# ways: script live
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=world)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    with open(f"rank{rank}.txt", "w") as file:
        print(total.item(), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
    os.path.exists("store") and os.remove("store")
    print("trained")
