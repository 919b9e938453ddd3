"""What tests of reservations whose nodes change have in common."""

from __future__ import annotations

from integration.hosts.lab import Allocator, Lab
from integration.live import TIMEOUT_S
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named

SUM = """
import torch, torch.distributed as dist
if dist.is_initialized(): dist.destroy_process_group()
dist.init_process_group("gloo")
total = torch.tensor([rank])
dist.all_reduce(total)
(total.item(), globals().get("kept"))
"""

WORLD = "import os; (rank, int(os.environ['WORLD_SIZE']), int(os.environ['NODE_RANK']), globals().get('kept'))"


def free() -> list[int]:
    return [node.procs_free for node in call(pool_named(None).described())]


def start_again(lab: Lab, allocator: Allocator) -> None:
    at = ["--listen", allocator.address]  # else it gets another port
    lab.start(procs=1, number=int(allocator.node_id[-1]), directory=allocator.paths.directory, flags=at)


def kill(allocator: Allocator) -> None:
    """End an allocator, and leave its ranks."""
    allocator.process.kill()
    allocator.process.wait(TIMEOUT_S)
