"""Groups whose last user is freed at a bad moment: by a model's reducer, or in a forked child. Neither may hang."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # DistributedDataParallel imports it when it is first made: 800 modules, here once for all ranks
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from integration.worker.forked_ranks import ForkedRanks
from monarch_nb.worker.groups import forming

Space = dict[str, Any]


@pytest.fixture
def pair() -> Iterator[ForkedRanks]:
    with ForkedRanks(2) as ranks:
        ranks.run(init)
        yield ranks


def init(_: Space) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def trained(group: Any = None) -> DistributedDataParallel:
    model = DistributedDataParallel(torch.nn.Linear(20, 1), process_group=group)
    model(torch.randn(500, 20)).sum().backward()
    return model


def ask(store: dist.Store) -> None:
    for _ in range(20):  # the lock is also released for a moment before the destructor: that must not do
        store.add("turns", 1)
    store.set("freeing", "1")


# ---- how a model is freed: each makes one, and frees it when it is asked again


def by_return() -> Iterator[None]:
    model = trained()
    yield
    assert model.reducer is not None


def by_the_garbage_collector() -> Iterator[None]:
    model = trained()
    model.itself = [model]
    del model
    yield
    gc.collect()


def before_its_logger() -> Iterator[None]:
    model = trained()
    logger = model.logger
    yield
    del model
    forming.begin_run(1)
    del logger


def with_a_subgroup() -> Iterator[None]:
    model = trained(dist.new_group())
    yield
    del model


FREED = [by_return, by_the_garbage_collector, before_its_logger, with_a_subgroup]


@pytest.mark.parametrize("freed", FREED)
def test_other_threads_go_on_while_a_models_group_is_freed(
    pair: ForkedRanks, freed: Callable[[], Iterator[None]]
) -> None:
    """Rank 0 frees it with an all-reduce under way, which ends when rank 0's other thread has asked rank 1 to join."""

    def free(space: Space) -> None:
        store = dist.distributed_c10d._get_default_store()
        steps = freed()
        next(steps)
        group = list(dist.distributed_c10d._world.pg_map)[-1]
        if space["rank"] != 0:
            store.wait(["freeing"])
            dist.all_reduce(torch.ones(1), group=group)
            return
        is_freeing = threading.Event()
        threading.Thread(target=lambda: is_freeing.wait() and ask(store)).start()
        dist.all_reduce(torch.ones(1), group=group, async_op=True)
        del group
        gc.disable()
        dist.destroy_process_group()
        sys.setswitchinterval(1000)  # the thread goes on only where the interpreter's lock is released
        is_freeing.set()
        list(steps)
        forming.begin_run(2)

    pair.run(free)


def test_a_script_that_frees_its_model_at_once_runs_again_and_again() -> None:
    """As it is: the destructor meets one of Gloo's threads that is freeing the last all-reduce."""

    def script(_: Space) -> tuple[int, int]:
        init(_)
        model = DistributedDataParallel(torch.nn.Linear(20, 1))
        for _ in range(2):
            model(torch.randn(500, 20)).sum().backward()
        dist.destroy_process_group()
        del model
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    with ForkedRanks(4) as ranks:
        first = ranks.run(script)
        for _ in range(20):
            assert ranks.run(script) == first


def test_a_hook_that_refers_to_the_group_aborts_no_rank() -> None:
    """One of Gloo's threads frees it; were that the group's last user, the thread would join itself."""

    def script(_: Space) -> None:
        init(_)
        model = DistributedDataParallel(torch.nn.Linear(20, 20))
        model.register_comm_hook(PowerSGDState(dist.group.WORLD, 1, start_powerSGD_iter=2), powerSGD_hook)
        for _ in range(4):
            model(torch.randn(50, 20)).sum().backward()
        dist.destroy_process_group()

    with ForkedRanks(4) as ranks:
        for _ in range(10):
            ranks.run(script)


def test_a_forked_child_frees_no_group(pair: ForkedRanks) -> None:
    """It has none of the threads that the destructor would wait for."""

    def fork(_: Space) -> int:
        gc.disable()
        model = trained()
        model.itself = [model]
        dist.destroy_process_group()
        del model
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            gc.collect()
            os._exit(0)
        return os.waitpid(child, 0)[1]

    assert pair.run(fork) == [0, 0]
