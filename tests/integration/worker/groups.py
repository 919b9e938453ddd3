"""What ranks are told that form groups of torch, and how tests break these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel imports it when it is first made: 800 modules, here once for all ranks
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from integration.live import eventually
from integration.worker.forked_ranks import Failure, ForkedRanks

Space = dict[str, Any]
WORLD = 4
ALL_BUT_0 = [1, 2, 3]


def init(_: Space) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def total(_: Space) -> float:
    value = torch.ones(1)
    dist.all_reduce(value)
    return float(value)


def wrap(space: Space) -> None:
    model = space.setdefault("model", torch.nn.Linear(4, 4))
    space["wrapped"] = DistributedDataParallel(model)
    space["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)


def train(space: Space) -> None:
    space["wrapped"](torch.ones(2, 4)).sum().backward()
    space["optimizer"].step()


def wait_for_key(store: dist.Store) -> None:
    store.get("a key that nobody sets")


def wait_for_keys(store: dist.Store, part: str) -> list[str]:
    """Wait until there are keys with this in them."""
    return eventually(lambda: [key for key in store.list_keys() if part in key])


def assert_works(ranks: ForkedRanks) -> None:
    ranks.run(init)
    assert ranks.run(total) == [float(ranks.world_size)] * ranks.world_size


def free(ranks: ForkedRanks, some: list[int]) -> list[Failure]:
    """Break the groups of ranks that hang; return how they failed."""
    assert ranks.break_groups(some) == [True] * len(some)
    failures = ranks.collect(some)
    assert all(isinstance(failure, Failure) for failure in failures), failures
    return failures


HANGS: dict[str, Callable[[Space], Any]] = {
    "all_reduce": total,
    "barrier": lambda _: dist.barrier(),
    "broadcast": lambda _: dist.broadcast(torch.ones(1), 0),
    "recv": lambda _: dist.recv(torch.ones(1), 0),
    "send": lambda _: dist.send(torch.ones(4_000_000), 0),
    "all_gather_object": lambda _: dist.all_gather_object([None] * WORLD, 1),
    "monitored_barrier": lambda _: dist.monitored_barrier(),
    "wait": lambda _: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "new_group": lambda _: dist.new_group(),
    "store wait": lambda _: wait_for_key(dist.distributed_c10d._get_default_store()),
    "DistributedDataParallel": wrap,
}
