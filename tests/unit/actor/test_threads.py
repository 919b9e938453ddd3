"""Many threads at once, threads that are interrupted, and actors that end themselves."""

import concurrent.futures
import ctypes
import threading
from typing import Any

import pytest

from monarch_nb.actor import Actor, context, endpoint
from monarch_nb.actor.engine.process import Execution, executing
from monarch_nb.errors import ActorError, SupervisionError
from unit.actor.network import TIMEOUT_S, Network


class Busy(Actor):
    def __init__(self) -> None:
        self.calls = 0
        self.running = 0

    @endpoint
    def count(self, n: int) -> int:
        self.running += 1
        assert self.running == 1, "one at a time"
        self.calls += 1
        self.running -= 1
        return n

    @endpoint
    def counted(self) -> int:
        return self.calls

    @endpoint
    def work_for_ever(self) -> None:
        while True:
            pass


class Ends(Actor):
    @endpoint
    def leave(self) -> None:
        context().actor_instance.stop("enough")

    @endpoint
    def abort(self) -> int:
        context().actor_instance.abort("no way on")
        return 1

    @endpoint
    def what(self) -> tuple[str, str, str]:
        now = executing()
        assert now is not None
        return now.actor, now.endpoint, now.caller


class Blocks(Actor):
    @endpoint
    async def block(self, other: Any) -> int:
        result: int = other.count.call_one(3).get(TIMEOUT_S)
        return result


def test_callers_on_many_threads(network: Network) -> None:
    busy = network.mesh(gpus=2).spawn("busy", Busy)

    def call(thread: int) -> bool:
        calls = [busy.count.call(thread * 1000 + n) for n in range(200)]
        return all(each.get(TIMEOUT_S).values() == [thread * 1000 + n] * 2 for n, each in enumerate(calls))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))
    assert busy.counted.call().get(TIMEOUT_S).values() == [1600, 1600]
    assert network.client.calls() == []


def interrupt(execution: Execution) -> None:
    """As an allocator does, in the thread of a sync endpoint too."""
    execution.interrupt()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(execution.thread), ctypes.py_object(KeyboardInterrupt))


def test_a_sync_endpoint_is_interrupted_and_its_actor_lives(network: Network) -> None:
    mesh = network.mesh(gpus=1)
    busy = mesh.spawn("busy", Busy)
    call = busy.work_for_ever.call_one()
    execution = network.started(mesh, "work_for_ever")
    [state] = network.client.calls()
    assert (state.title, list(state.unanswered)) == ("busy.work_for_ever", [0])
    assert execution.caller == "the notebook"
    interrupt(execution)
    with pytest.raises(ActorError, match="was interrupted") as raised:
        call.get(TIMEOUT_S)
    assert not isinstance(raised.value, SupervisionError)
    assert busy.counted.call_one().get(TIMEOUT_S) == 0


def test_who_has_an_answer_finds_the_actor_idle(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = network.mesh(gpus=1)
    busy = mesh.spawn("busy", Busy)
    [rank] = network.ranks(mesh)
    running: list[int] = []
    carry = network.carry

    def looked(*message: Any) -> None:
        if message[-1]:  # it answers
            running.extend(len(actor.running) for actor in rank.actors())
        carry(*message)

    monkeypatch.setattr(network, "carry", looked)
    assert busy.count.call_one(7).get(TIMEOUT_S) == 7
    assert running == [0]


def test_an_actor_that_stops_itself_and_one_that_aborts(network: Network) -> None:
    first, second = (network.mesh(gpus=1).spawn("ends", Ends) for _ in range(2))
    assert first.what.call_one().get(TIMEOUT_S) == ("ends", "what", "the notebook")
    assert executing() is None
    assert first.leave.call_one().get(TIMEOUT_S) is None
    with pytest.raises(SupervisionError, match="was stopped: enough"):
        first.what.call_one().get(TIMEOUT_S)
    assert network.told.empty()
    assert second.abort.call_one().get(TIMEOUT_S) == 1
    with pytest.raises(SupervisionError, match="explicitly aborted due to: no way on"):
        second.what.call_one().get(TIMEOUT_S)
    assert "no way on" in network.told.get(timeout=TIMEOUT_S)


def test_blocking_a_loop_is_warned_of(network: Network) -> None:
    blocks, busy = network.mesh(gpus=1).spawn("blocks", Blocks), network.mesh(gpus=1).spawn("busy", Busy)
    with pytest.warns(UserWarning, match="called from within an active event loop"):
        assert blocks.block.call_one(busy).get(TIMEOUT_S) == 3


def test_no_thread_is_left_when_a_process_closes(network: Network) -> None:
    mesh = network.mesh(gpus=4)
    mesh.spawn("blocks", Blocks).initialized.get(TIMEOUT_S)
    for process in network.ranks(mesh):
        process.close(TIMEOUT_S)
    for thread in threading.enumerate():
        if "blocks" in thread.name:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def test_what_waits_in_the_name_of_a_run_is_withdrawn_though_the_actor_is_busy(network: Network) -> None:
    mesh = network.mesh(gpus=1)
    busy, [rank], tag = mesh.spawn("busy", Busy), network.ranks(mesh), network.wire(network.client).tag_given
    busy.work_for_ever.broadcast()
    execution = network.started(mesh, "work_for_ever")
    tag.runs = {"mesh0": ("mine", 1, 0)}
    withdrawn = busy.count.call_one(1)
    tag.runs = {"mesh0": ("other", 2, 0)}
    kept = busy.count.call_one(2)
    rank.withdraw("mine")
    with pytest.raises(ActorError, match="before its turn had come"):
        withdrawn.get(TIMEOUT_S)
    assert rank.actors()[0].waiting == 1
    tag.runs = {"mesh0": ("mine", 1, 0)}
    with pytest.raises(ActorError, match="before its turn had come"):
        busy.count.call_one(3).get(TIMEOUT_S)
    interrupt(execution)
    assert kept.get(TIMEOUT_S) == 2
