"""What goes wrong with actors on real ranks: each is a clear error or has a defined end, and the ranks go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

from integration.live import TIMEOUT_S, eventually
from monarch_nb.actor import Actor, ActorError, SupervisionError, concurrent_endpoint, current_rank, endpoint
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import


class Worker(Actor):
    def __init__(self, fails_on: int = -1) -> None:
        self.count = 0
        if current_rank().rank == fails_on:
            raise ValueError("no model here")

    @endpoint
    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    @endpoint
    def hang(self) -> None:
        while True:
            time.sleep(1000)

    @endpoint
    def call_itself(self, own: Any) -> int:
        return int(own.slice(**current_rank()).add.call_one().get())

    @endpoint
    def send_itself(self, own: Any) -> None:
        own.slice(**current_rank()).add.broadcast(100)

    @endpoint
    def hand_back(self, value: Any) -> Any:
        value += 1
        return value

    @endpoint
    def lock(self) -> Any:
        return threading.Lock()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Mixed(Actor):
    @endpoint
    def plain(self) -> None: ...

    @endpoint
    async def coroutine(self) -> None: ...


class Waiting(Actor):
    @endpoint
    async def call_itself(self, own: Any) -> Any:
        return await own.slice(**current_rank()).call_itself.call_one(own)

    @concurrent_endpoint
    async def answer(self) -> int:
        return 7


@pytest.fixture
def mesh(dev: Reservation) -> Iterator[Mesh]:
    """The main mesh; afterwards every rank lives. This process's run of calls goes on: it is a program."""
    yield dev.mesh
    if dead := [info.rank for info in dev.mesh.status() if info.state == "dead"]:
        dev.mesh.restart(dead)


@pytest.fixture
def workers(mesh: Mesh) -> Iterator[Any]:
    """Actors on all 8 ranks, which end with the test."""
    spawned: Any = mesh.spawn("workers", Worker)
    yield spawned
    spawned.stop().get(TIMEOUT_S)


def test_what_does_not_exist_is_told_before_anything_is_sent(workers: Any, mesh: Mesh) -> None:
    with pytest.raises(AttributeError, match="ad"):
        _ = workers.ad
    with pytest.raises(IndexError, match="index out of range"):
        workers.slice(hosts=2)
    with pytest.raises(TypeError, match="'gpus'"):
        workers.slice(gpus=0)
    with pytest.raises(TypeError, match="too many positional arguments"):
        workers.add.call(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'step'"):
        workers.add.call(step=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lr'"):
        mesh.spawn("others", Worker, lr=1)
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 8"):
        workers.add.call_one()
    with pytest.raises(ValueError, match="mixes both async and sync endpoints"):
        mesh.spawn("mixed", Mixed)
    assert set(workers.add.call(0).get(TIMEOUT_S).values()) == {0}


def test_what_can_not_be_pickled_is_told_where_it_is(workers: Any) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        workers.hand_back.call(threading.Lock())
    with pytest.raises(ActorError, match="cannot pickle") as raised:
        workers.lock.call().get(TIMEOUT_S)
    assert sorted(raised.value.failures) == list(range(8))
    assert set(workers.add.call().get(TIMEOUT_S).values()) == {1}


def test_arrays_of_any_size_arrive_as_what_can_be_changed(workers: Any) -> None:
    for size in (1, 1000, 1_000_000):
        sent = np.zeros(size)
        for back in workers.hand_back.call(sent).get(TIMEOUT_S).values():
            assert back.sum() == size
        assert not sent.any()


def test_a_rank_whose_init_raises_fails_alone(mesh: Mesh) -> None:
    partly: Any = mesh.spawn("partly", Worker, fails_on=5)
    with pytest.raises(SupervisionError, match="no model here") as raised:
        partly.add.call().get(TIMEOUT_S)
    assert list(raised.value.failures) == [5]
    assert raised.value.failures[5].host == os.uname().nodename
    assert raised.value.failures[5].coordinates == {"hosts": 1, "procs": 1}
    assert sorted(raised.value.values) == [0, 1, 2, 3, 4, 6, 7]
    assert set(partly.slice(hosts=0).add.call().get(TIMEOUT_S).values()) == {2}
    partly.stop().get(TIMEOUT_S)


def test_what_was_stopped_says_so(mesh: Mesh) -> None:
    workers: Any = mesh.spawn("stopped", Worker)
    workers.add.call().get(TIMEOUT_S)
    workers.stop("the day is over").get(TIMEOUT_S)
    with pytest.raises(SupervisionError, match="the day is over"):
        workers.add.call().get(TIMEOUT_S)
    workers.add.broadcast()
    workers.stop().get(TIMEOUT_S)


def test_a_dead_rank_fails_calls_and_the_others_go_on(workers: Any, mesh: Mesh) -> None:
    workers.add.call().get(TIMEOUT_S)
    with pytest.raises(SupervisionError, match=r"killed by signal 9 \(SIGKILL\)"):
        workers.slice(hosts=0, procs=3).die.call_one().get(TIMEOUT_S)
    with pytest.raises(SupervisionError, match=r"rank 3 \(node0\): its process died") as raised:
        workers.add.call().get(TIMEOUT_S)
    assert raised.value.failures[3].kind == "died"
    assert set(workers.slice(hosts=1).add.call(0).get(TIMEOUT_S).values()) == {2}
    with pytest.raises(SupervisionError):
        mesh.spawn("late", Worker).add.call().get(TIMEOUT_S)


def test_an_endpoint_that_never_returns(workers: Any, mesh: Mesh) -> None:
    future = workers.hang.call()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    eventually(lambda: all("(Worker.hang)" in stack for _, stack in mesh.stacks().groups))
    queued = workers.slice(hosts=0).add.call()
    mesh.interrupt()
    after: Any = mesh.spawn("after", Worker)
    assert len(after.add.call(0).get(TIMEOUT_S)) == 8, "what is called from now on is not interrupted"
    after.stop().get(TIMEOUT_S)
    with pytest.raises(ActorError, match="interrupted"):
        future.get(TIMEOUT_S)
    queued.exception(TIMEOUT_S)
    assert len(workers.add.call(0).get(TIMEOUT_S)) == 8


def test_a_message_to_itself(workers: Any, mesh: Mesh) -> None:
    with pytest.raises(ActorError, match="itself"):
        workers.call_itself.call(workers).get(TIMEOUT_S)
    workers.send_itself.call(workers).get(TIMEOUT_S)
    waiting: Any = mesh.spawn("waiting", Waiting)
    with pytest.raises(ActorError, match="itself"):
        waiting.call_itself.call(waiting).get(TIMEOUT_S)
    assert set(waiting.answer.call().get(TIMEOUT_S).values()) == {7}
    waiting.stop().get(TIMEOUT_S)
    assert set(workers.add.call(0).get(TIMEOUT_S).values()) == {101}, "what nobody waits for is done, too"


def test_ten_thousand_queued_broadcasts(workers: Any) -> None:
    for _ in range(10_000):
        workers.add.broadcast()
    assert set(workers.add.call(0).get(TIMEOUT_S).values()) == {10_000}
