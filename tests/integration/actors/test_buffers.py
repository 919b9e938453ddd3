"""Memory of a rank that other ranks, on its node and on another, read and write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from integration.live import TIMEOUT_S
from monarch_nb.actor import Actor, endpoint
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import BufferFailed
from monarch_nb.rdma import RDMAAction, RDMABuffer

pytestmark = pytest.mark.shape(nodes=2, procs=2)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import

SMALL, LARGE = 1_000, 5_000_000
"""Numbers of 4 bytes: what is sent within a message, and what is not."""
NEAR, FAR = {"hosts": 0, "procs": 1}, {"hosts": 1, "procs": 0}
"""Of the rank that owns buffers: one of its node, and one of the other."""


class Trainer(Actor):
    @endpoint
    def make(self, size: int) -> RDMABuffer:
        self.weights = torch.arange(size, dtype=torch.float32)
        return RDMABuffer(self.weights.view(torch.uint8).flatten())

    @endpoint
    def compute_until(self, path: str) -> None:
        """Hold the thread, and mostly the interpreter, until a file is there."""
        while not os.path.exists(path):
            sum(range(10_000))

    @endpoint
    def sum(self) -> float:
        return float(self.weights.sum())

    @endpoint
    def make_and_drop(self, readers: Any, rounds: int) -> None:
        """Drop buffers while others read them, and use their memory again."""
        for number in range(rounds):
            content = torch.full((LARGE // 4,), number, dtype=torch.float32)
            buffer = RDMABuffer(content)
            reading = readers.read_all.call(buffer, number)
            if number % 2:
                buffer.drop().get(TIMEOUT_S)
                content.fill_(-1)
            reading.get(TIMEOUT_S)
            buffer.drop().get(TIMEOUT_S)


class Generator(Actor):
    @endpoint
    async def read(self, buffer: RDMABuffer) -> float:
        weights = torch.zeros(buffer.size() // 4)
        await buffer.read_into(weights.view(torch.uint8).flatten(), timeout=60)
        return float(weights.sum())

    @endpoint
    async def write(self, buffer: RDMABuffer, value: float) -> None:
        await buffer.write_from(torch.full((buffer.size() // 4,), float(value)), timeout=60)

    @endpoint
    async def read_all(self, buffer: RDMABuffer, value: float) -> str:
        """Return what came of many reads: what was read is what the owner made, or it says that it is gone."""
        weights = [torch.zeros(buffer.size() // 4) for _ in range(3)]
        action = RDMAAction()
        for each in weights:
            action.read_remote(each, buffer)
        try:
            await action.submit()
        except BufferFailed as error:
            return str(error)
        assert all(bool((each == value).all()) for each in weights), "these are bytes of something else"
        return ""


@pytest.fixture
def trainer(actor_mesh: Mesh) -> Iterator[Any]:
    """On the first rank."""
    spawned: Any = actor_mesh.slice(hosts=0, procs=0).spawn("trainer", Trainer)
    yield spawned
    spawned.stop().get(TIMEOUT_S)


@pytest.fixture
def generators(actor_mesh: Mesh) -> Iterator[Any]:
    """On all ranks."""
    spawned: Any = actor_mesh.spawn("generators", Generator)
    yield spawned
    spawned.stop().get(TIMEOUT_S)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_ranks_read_and_write_what_another_one_has(trainer: Any, generators: Any, size: int) -> None:
    buffer = trainer.make.call_one(size).get(TIMEOUT_S)
    wanted = float(torch.arange(size, dtype=torch.float32).sum())
    assert set(generators.read.call(buffer).get(TIMEOUT_S).values()) == {wanted}
    weights = torch.zeros(size)
    buffer.read_into(weights).get(TIMEOUT_S)
    assert float(weights.sum()) == wanted
    for value, place in enumerate(({"hosts": 0, "procs": 0}, NEAR, FAR), 1):
        generators.slice(**place).write.call_one(buffer, value).get(TIMEOUT_S)
        assert trainer.sum.call_one().get(TIMEOUT_S) == value * size
    buffer.write_from(torch.zeros(size)).get(TIMEOUT_S)
    assert trainer.sum.call_one().get(TIMEOUT_S) == 0


def test_ranks_read_what_the_notebook_has(generators: Any) -> None:
    weights = torch.ones(LARGE)
    buffer = RDMABuffer(weights)
    assert set(generators.read.call(buffer).get(TIMEOUT_S).values()) == {LARGE}
    generators.slice(**FAR).write.call_one(buffer, 2).get(TIMEOUT_S)
    assert float(weights.sum()) == 2 * LARGE
    buffer.drop().get(TIMEOUT_S)


def test_an_owner_that_computes_holds_nobody_up(trainer: Any, generators: Any, tmp_path: Path) -> None:
    buffer = trainer.make.call_one(LARGE).get(TIMEOUT_S)
    computing = trainer.compute_until.call_one(str(tmp_path / "over"))
    for place in (NEAR, FAR):
        generators.slice(**place).write.call_one(buffer, 1).get(TIMEOUT_S)
        assert generators.slice(**place).read.call_one(buffer).get(TIMEOUT_S) == LARGE
    with pytest.raises(TimeoutError):
        computing.get(timeout=0)
    (tmp_path / "over").touch()
    computing.get(TIMEOUT_S)


def test_what_is_read_is_never_what_came_after_a_buffer(trainer: Any, generators: Any) -> None:
    trainer.make_and_drop.call_one(generators, 30).get(TIMEOUT_S)
