"""What tests of reservations whose nodes change have in common."""

from __future__ import annotations

from integration.hosts.lab import Allocator, Lab
from integration.live import TIMEOUT_S
from monarch_nb import Reservation
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.errors import RunFailed

SUM = """
import torch, torch.distributed as dist
if dist.is_initialized(): dist.destroy_process_group()
dist.init_process_group("gloo")
total = torch.tensor([rank])
dist.all_reduce(total)
(total.item(), globals().get("kept"))
"""

WORLD = "import os; (rank, int(os.environ['WORLD_SIZE']), int(os.environ['NODE_RANK']), globals().get('kept'))"


def all_are_new(dev: Reservation) -> bool:
    """Whether all three ranks are of the new world. Those of a node that was away start anew when it has learnt of it,
    also in the middle of a cell."""
    try:
        return dev.mesh.run(WORLD).values == [(rank, 3, rank, None) for rank in range(3)]
    except RunFailed as error:
        if "RankRestarted" not in str(error):
            raise
        return False


def free() -> list[int]:
    return [node.procs_free for node in call(pool_named(None).described())]


def start_again(lab: Lab, allocator: Allocator) -> None:
    at = ["--listen", allocator.address]  # else it gets another port
    lab.start(procs=1, number=int(allocator.node_id[-1]), directory=allocator.paths.directory, flags=at)


def times_told(allocator: Allocator, node_id: str) -> int:
    """Return how often an allocator has told another node which nodes a reservation has."""
    return allocator.log.read_text().count(f"{node_id} has been told: ChangeMembers")


def kill(allocator: Allocator) -> None:
    """End an allocator, and leave its ranks."""
    allocator.process.kill()
    allocator.process.wait(TIMEOUT_S)


_STOPS = """
import asyncio
from monarch_nb.client.connections.connection import Connection
unary = Connection.unary
async def stopping(self, method, *arguments):
    {before}
    reply = await unary(self, method, *arguments)
    {after}
    return reply
async def stop(here):
    if here:
        print("there")
        {waits}
Connection.unary = stopping
monarch_nb.attach("dev").{change}
print("done")
"""


def stops_before(method: str, change: str, waits: str = "await asyncio.Event().wait()") -> str:
    """Return a program that changes the nodes of dev, and waits before it calls a method of an allocator."""
    return _STOPS.format(before=f"await stop(method == {method!r})", after="", waits=waits, change=change)


def stops_after(method: str, change: str) -> str:
    """Return one that waits when it has called it."""
    waits = "await asyncio.Event().wait()"
    return _STOPS.format(before="", after=f"await stop(method == {method!r})", waits=waits, change=change)
