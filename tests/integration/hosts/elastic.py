"""What tests of reservations whose nodes change have in common."""

from __future__ import annotations

from integration.live import TIMEOUT_S
from lab import Allocator, Lab
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


def free() -> list[int]:
    return [node.procs_free for node in call(pool_named(None).described())]


def start_again(lab: Lab, allocator: Allocator) -> None:
    at = ["--listen", allocator.address]  # else it gets another port
    lab.start(procs=1, number=int(allocator.node_id[-1]), directory=allocator.paths.directory, flags=at)


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
