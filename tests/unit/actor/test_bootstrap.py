"""What sets new processes up, before there are other actors in them."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.actor import Actor, ActorMesh, current_rank, endpoint, proc_mesh, this_host, this_proc
from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.hosts import find_actors, sets_up
from monarch_nb.errors import ActorError, SpawnError, SupervisionError
from unit.actor.network import TIMEOUT_S, Network

events: list[str] = []
held: threading.Event
waits: queue.SimpleQueue[str]


class Counter(Actor):
    def __init__(self, value: int = 0) -> None:
        events.append("counter")
        self.value = value

    @endpoint
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @endpoint
    def below(self) -> int:
        """Of an actor that this one spawns."""
        counter: ActorMesh = this_proc().spawn("below", Counter, 10)
        value: int = counter.add.call_one(1).get(TIMEOUT_S)
        return value

    @endpoint
    def fail(self) -> None:
        raise OSError("after all")


def _spawn_here() -> None:
    this_proc().spawn("foo", Counter).add.call(1).get(TIMEOUT_S)
    this_proc().spawn("bar", Counter).add.call(1).get(TIMEOUT_S)
    events.append("set up")


async def _spawn_here_async() -> None:
    await this_proc().spawn("foo", Counter).add.call(1)
    await this_proc().spawn("bar", Counter).add.call(1)
    events.append("set up")


def _spawn_two_deep() -> None:
    events.append(str(this_proc().spawn("foo", Counter).below.call_one().get(TIMEOUT_S)))


def _hold() -> None:
    waits.put("holds")
    assert held.wait(TIMEOUT_S)


async def _hold_async() -> None:
    waits.put("holds")
    await asyncio.Event().wait()


async def _pause() -> None:
    await asyncio.sleep(0)
    events.append(f"rank {current_rank().rank}")


def _fail() -> None:
    raise OSError("can not be set up")


async def _fail_async() -> None:
    await asyncio.sleep(0)
    raise OSError("can not be set up")


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    global held, waits
    events.clear()
    held, waits = threading.Event(), queue.SimpleQueue()


@pytest.mark.parametrize("bootstrap", [_pause, lambda: _pause()])
def test_it_comes_before_actors(network: Network, bootstrap: Callable[[], Any]) -> None:
    mesh = this_host().spawn_procs({"a": 1}, bootstrap=bootstrap)
    assert mesh.spawn("looks", Counter).add.call_one(2).get(TIMEOUT_S) == 2
    assert events == ["rank 0", "counter"]
    rank = network.ranks(mesh)[0]
    assert (rank.instances().keys(), len(rank.actors()), len(rank.handles())) == ({"looks"}, 1, 1)


def test_who_starts_processes_does_not_wait_for_them(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    started: concurrent.futures.Future[list[Address]] = concurrent.futures.Future()
    monkeypatch.setattr(network.wire(network.client), "spawn_procs", lambda *_: started)
    mesh = this_host().spawn_procs(bootstrap=_pause)
    ready = mesh.initialized
    assert not ready._outcome.is_resolved()
    started.set_result(network.start(["node0"], 1))
    assert ready.get(TIMEOUT_S) is True
    assert events == ["rank 0"]


def test_processes_that_can_not_be_started_are_told_to_who_uses_them(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: concurrent.futures.Future[list[Address]] = concurrent.futures.Future()
    started.set_exception(SpawnError("no such python"))
    monkeypatch.setattr(network.wire(network.client), "spawn_procs", lambda *_: started)
    mesh = this_host().spawn_procs(bootstrap=_pause)
    for use in (lambda: mesh.initialized.get(TIMEOUT_S), lambda: mesh.spawn("counter", Counter)):
        with pytest.raises(SpawnError, match="no such python"):
            use()


@pytest.mark.parametrize("bootstrap", [_spawn_here, _spawn_here_async])
def test_it_calls_actors_of_its_process_and_they_live_on(network: Network, bootstrap: Callable[[], Any]) -> None:
    """Monarch's own pattern: its test_setup and test_setup_async."""
    mesh = this_host().spawn_procs(bootstrap=bootstrap)
    for name in ("counter", "bootstrap"):  # which does not take its place
        assert mesh.spawn(name, Counter).add.call_one(5).get(TIMEOUT_S) == 5
    assert events == ["counter", "counter", "set up", "counter", "counter"]
    found = find_actors(mesh).get(TIMEOUT_S)
    assert found["foo"].add.call_one(1).get(TIMEOUT_S) == 2
    assert network.ranks(mesh)[0].instances().keys() == {"foo", "bar", "counter", "bootstrap"}
    found["foo"].fail.broadcast()
    assert "OSError: after all" in network.told.get(timeout=TIMEOUT_S)
    assert mesh.spawn("another", Counter).add.call_one(1).get(TIMEOUT_S) == 1
    mesh.stop().get(TIMEOUT_S)


def test_actors_of_its_actors_do_not_wait_for_it_either_and_it_is_stopped_while_it_hangs(network: Network) -> None:
    mesh = this_host().spawn_procs(bootstrap=_spawn_two_deep)
    assert mesh.initialized.get(TIMEOUT_S) is True
    assert events[-1] == "11"
    mesh = this_host().spawn_procs(bootstrap=_hold_async)
    call = mesh.spawn("counter", Counter).add.call(1)
    waits.get(timeout=TIMEOUT_S)
    assert mesh.stop().get(TIMEOUT_S) is None
    assert "was stopped" in str(call.exception(TIMEOUT_S))


@pytest.mark.parametrize("bootstrap", [_fail, _fail_async])
def test_one_that_raises_fails_all_and_says_where(network: Network, bootstrap: Callable[[], Any]) -> None:
    mesh = this_host().spawn_procs({"a": 2}, bootstrap=bootstrap)
    with pytest.raises(SupervisionError, match=r"bootstrap\.run failed on ranks 0-1 of 2(.|\n)*in _fail") as raised:
        mesh.initialized.get(TIMEOUT_S)
    assert isinstance(raised.value.failures[1].exception, OSError)
    for _ in range(2):  # also what is spawned later
        with pytest.raises(
            ActorError, match=r"ranks 0-1 of 2(.|\n)*the bootstrap of its process did not succeed"
        ) as one:
            mesh.spawn("counter", Counter).add.call(1).get(TIMEOUT_S)
        assert "in _fail" in str(one.value)
        assert "OSError: can not be set up" in str(one.value)
    told = network.told.get(timeout=TIMEOUT_S)
    assert "bootstrap.run failed on ranks 0-1: OSError: can not be set up; no actor can be made there" in told
    assert network.told.empty(), "what follows from it is not told once more"
    assert "bootstrap" in {each.name for each in network.ranks(mesh)[0].actors()}, "to say why"


@pytest.mark.parametrize("bootstrap", [_hold, _hold_async])
def test_one_that_hangs_is_seen_and_can_be_interrupted(network: Network, bootstrap: Callable[[], Any]) -> None:
    mesh = this_host().spawn_procs(bootstrap=bootstrap)
    call = mesh.spawn("counter", Counter).add.call(1)
    waits.get(timeout=TIMEOUT_S)
    [first, other] = network.ranks(mesh)[0].actors()
    assert sets_up(first.class_name)
    assert [each.endpoint for each in first.running] == ["run"]
    assert not other.running
    assert not mesh.initialized._outcome.is_resolved()
    first.running[0].interrupt()
    held.set()
    if bootstrap is _hold:  # no thread is interrupted here
        assert call.get(TIMEOUT_S).values() == [1]
    else:
        assert "did not succeed" in str(call.exception(TIMEOUT_S))


async def test_the_setup_of_first_releases_and_one_that_can_not_be_pickled(network: Network) -> None:
    mesh = await proc_mesh(gpus=1, setup=_spawn_here_async)
    assert await mesh.initialized
    assert events[-1] == "set up"
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        this_host().spawn_procs(bootstrap=lambda: lock.acquire())
