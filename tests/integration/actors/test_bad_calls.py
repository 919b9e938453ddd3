"""What goes wrong with actors on real ranks: each is a clear error or has a defined end, and the ranks go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from integration.live import TIMEOUT_S, eventually
from monarch_nb.actor import Actor, ActorError, endpoint
from monarch_nb.client.meshes.mesh import Mesh

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import


class Worker(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    @endpoint
    def hang(self) -> None:
        while True:
            time.sleep(1000)


@pytest.fixture
def workers(actor_mesh: Mesh) -> Iterator[Any]:
    """Actors on all 8 ranks, which end with the test."""
    spawned: Any = actor_mesh.spawn("workers", Worker)
    yield spawned
    spawned.stop().get(TIMEOUT_S)


def test_an_endpoint_that_never_returns(workers: Any, actor_mesh: Mesh) -> None:
    future = workers.hang.call()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    eventually(lambda: all("(Worker.hang)" in stack for _, stack in actor_mesh.stacks().groups))
    queued = workers.slice(hosts=0).add.call()
    actor_mesh.interrupt()
    after: Any = actor_mesh.spawn("after", Worker)
    assert len(after.add.call(0).get(TIMEOUT_S)) == 8, "what is called from now on is not interrupted"
    after.stop().get(TIMEOUT_S)
    with pytest.raises(ActorError, match="interrupted"):
        future.get(TIMEOUT_S)
    queued.exception(TIMEOUT_S)
    assert len(workers.add.call(0).get(TIMEOUT_S)) == 8
