"""What travels: ports, meshes, classes of cells, large arrays."""

import gc
import linecache
import pickle
from typing import Any

import numpy as np
import pytest

from monarch_nb.actor import (
    Actor,
    Channel,
    Future,
    Port,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    proc_mesh,
    send,
    this_host,
    this_proc,
)
from monarch_nb.actor.hosts import find_actors
from monarch_nb.errors import ActorError, UsageError
from unit.actor.network import TIMEOUT_S, Network

set_up: list[str] = []


class Counter(Actor):
    def __init__(self, value: int = 0) -> None:
        self.value = value

    @endpoint
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def send_twice(self, port: Port[int]) -> None:
        port.send(self.value)
        port.send(self.value + 1)

    @endpoint
    def fail(self) -> None:
        raise ValueError("bad")

    @endpoint
    def total(self, array: Any) -> Any:
        return array.sum(), array * 2


class Middle(Actor):
    def __init__(self, counters: Any) -> None:
        self.mine = counters.slice(**context().actor_instance.rank)

    @endpoint
    def add(self, n: int) -> int:
        result: int = self.mine.add.call_one(n).get(TIMEOUT_S)
        return result

    @endpoint
    def spawn(self, procs: Any) -> Any:
        return procs.spawn("made", Counter, 5)

    @endpoint
    def receive(self, counters: Any) -> list[int]:
        port, receiver = Channel[int].open()
        counters.send_twice.broadcast(port)
        return sorted(receiver.recv().get(TIMEOUT_S) for _ in range(2 * counters.size()))

    @endpoint
    def controller(self) -> int:
        result: int = get_or_spawn_controller("one", Counter, 100).get(TIMEOUT_S).add.call_one(1).get(TIMEOUT_S)
        return result

    @endpoint
    def here(self) -> Any:
        return this_proc().spawn("kid", Counter, 7)


class TestMeshes:
    def test_actors_call_actors(self, network: Network) -> None:
        counters = network.mesh(hosts=2, gpus=2).spawn("counters", Counter)
        middle = network.mesh(hosts=2, gpus=2).spawn("middle", Middle, counters)
        assert middle.add.call(3).get(TIMEOUT_S).values() == [3] * 4
        sent = network.wire(network.client).sent
        middle.slice(hosts=0, gpus=0).add.call_one(1).get(TIMEOUT_S)
        assert network.wire(network.client).sent == sent + 1, "the client is not in the path"

    def test_actors_spawn_and_return_meshes(self, network: Network) -> None:
        counters = network.mesh(gpus=1).spawn("counters", Counter)
        middle = network.mesh(gpus=1).spawn("middle", Middle, counters).slice(gpus=0)
        made = middle.spawn.call_one(network.mesh(gpus=3)).get(TIMEOUT_S)
        assert made.add.call(1).get(TIMEOUT_S).values() == [6, 6, 6]
        kid = middle.here.call_one().get(TIMEOUT_S)
        assert kid.add.call_one(1).get(TIMEOUT_S) == 8
        assert kid.extent == {}

    def test_they_are_small_and_one_message_goes_to_a_node(self, network: Network) -> None:
        counters = network.mesh(hosts=2, gpus=64).spawn("counters", Counter)
        assert len(pickle.dumps(counters.slice(hosts=1))) < 2000
        counters.initialized.get(TIMEOUT_S)
        sent = network.wire(network.client).sent
        counters.add.call(1).get(TIMEOUT_S)
        assert network.wire(network.client).sent == sent + 2

    def test_a_program_has_actors_too(self, network: Network) -> None:
        mine = this_proc().spawn("mine", Counter, 1)
        middle = network.mesh().spawn("middle", Middle, mine)
        assert middle.add.call_one(5).get(TIMEOUT_S) == 6
        assert mine.add.call_one(1).get(TIMEOUT_S) == 7
        assert network.client.instances().keys() == {"mine"}

    def test_actors_are_found_again_and_say_what_they_do(self, network: Network) -> None:
        mesh = network.mesh(gpus=2)
        mesh.spawn("counters", Counter).add.call(4).get(TIMEOUT_S)
        found = find_actors(mesh).get(TIMEOUT_S)
        assert found["counters"].add.call(1).get(TIMEOUT_S).values() == [5, 5]
        [state] = network.ranks(mesh)[0].actors()
        assert (state.name, state.class_name, state.waiting) == ("counters", f"{__name__}.Counter", 0)
        assert state.called >= 2
        assert network.ranks(mesh)[0].instances()["counters"].value == 5  # type: ignore[attr-defined]

    def test_actors_of_all_nodes_reach_the_one_controller_of_their_program(self, network: Network) -> None:
        """It has another address on each node, and they are told the one of the first."""
        counters = network.mesh(hosts=2).spawn("counters", Counter)
        middle = network.mesh(hosts=2).spawn("middle", Middle, counters)
        assert sorted(middle.controller.call().get(TIMEOUT_S).values()) == [101, 102]
        assert get_or_spawn_controller("one", Counter, 0).get(TIMEOUT_S).add.call_one(1).get(TIMEOUT_S) == 103


class TestHosts:
    async def test_processes_of_any_shape_also_as_first_releases_made_them(self, network: Network) -> None:
        mesh = this_host().spawn_procs({"a": 2, "b": 2})
        assert mesh.extent == {"a": 2, "b": 2}
        assert await mesh.initialized is True
        assert (await mesh.spawn("c", Counter).rank.call()).values() == [0, 1, 2, 3]
        assert this_host().spawn_procs().extent == {}
        counters = await (await proc_mesh(gpus=2)).spawn("counters", Counter)
        assert (await counters.rank.call()).sizes == {"hosts": 1, "gpus": 2}

    def test_what_is_impossible_is_refused(self, network: Network) -> None:
        with pytest.raises(ValueError, match="size of 1 or more"):
            this_host().spawn_procs({"a": 0})
        with pytest.raises(UsageError, match="bootstrap="):
            this_host().spawn_procs({"a": 1}, proc_bind=[{}])
        with pytest.raises(UsageError, match="the path of a Python on the hosts"):
            this_host().with_python_executable("")


class TestChannels:
    def test_values_and_exceptions_come_in_order_and_once_where_said(self, network: Network) -> None:
        port, receiver = Channel[int].open()
        for number in range(3):
            port.send(number)
        port.exception(KeyError("x"))
        assert [receiver.recv().get(TIMEOUT_S) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="x"):
            receiver.recv().get(TIMEOUT_S)
        port, receiver = Channel[int].open(once=True)
        port.send(1)
        with pytest.raises(RuntimeError, match="already used"):
            port.send(2)
        assert receiver.recv().get(TIMEOUT_S) == 1
        with pytest.raises(ValueError, match="OncePort is already used"):
            receiver.recv()

    def test_ports_travel(self, network: Network) -> None:
        counters = network.mesh(hosts=2, gpus=2).spawn("counters", Counter, 1)
        middle = network.mesh(gpus=1).spawn("middle", Middle, counters.flatten("gpus")).slice(gpus=0)
        assert middle.receive.call_one(counters).get(TIMEOUT_S) == [1, 1, 1, 1, 2, 2, 2, 2]

    def test_a_dropped_receipt_leaves_its_value_to_the_next(self, network: Network) -> None:
        port, receiver = Channel[int].open()
        with pytest.raises(TimeoutError, match="nothing came within 0 s"):
            receiver.recv().get(timeout=0)
        gc.collect()
        unseen = receiver.recv()
        port.send(1)
        del unseen
        gc.collect()
        port.send(2)
        assert [receiver.recv().get(TIMEOUT_S), receiver.recv().get(TIMEOUT_S)] == [1, 2]

    def test_every_rank_responds_to_a_port(self, network: Network) -> None:
        counters = network.mesh(gpus=4).spawn("counters", Counter)
        port, receiver = Channel[int].open_ranked()
        send(counters.rank, (), {}, port)
        assert sorted(receiver.recv().get(TIMEOUT_S) for _ in range(4)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
        send(counters.add, (1,), {}, port, selection="choose")
        assert receiver.recv().get(TIMEOUT_S)[1] == 1
        send(counters.slice(gpus=0).fail, (), {}, port)
        with pytest.raises(ActorError, match="ValueError: bad"):
            receiver.recv().get(TIMEOUT_S)

    def test_receivers_and_futures_stay(self, network: Network) -> None:
        counters = network.mesh(gpus=1).spawn("counters", Counter)
        _, receiver = Channel[int].open()
        with pytest.raises(TypeError, match="PortReceiver"):
            counters.add.call(receiver)
        with pytest.raises(TypeError, match="Future"):
            counters.add.call(receiver.recv())
        with pytest.raises(TypeError, match="cannot be constructed directly"):
            Future()


class TestContent:
    def test_arrays_are_views_of_the_message_and_can_be_changed(self, network: Network) -> None:
        counters = network.mesh(gpus=1).spawn("counters", Counter)
        for size in (3, 100_000):
            total, twice = counters.slice(gpus=0).total.call_one(np.arange(size)).get(TIMEOUT_S)
            assert total == sum(range(size))
            twice += 1
            assert twice[1] == 3
        assert twice.base is not None
        assert not twice.flags.owndata

    def test_a_class_of_a_cell_shows_its_lines(self, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        name = "<ipython-input-7-cafe>"
        code = (
            "from monarch_nb.actor import Actor, endpoint\n"
            "OFFSET = 40\n"
            "class Cell(Actor):\n"
            "    @endpoint\n"
            "    def fail(self):\n"
            "        raise ValueError(OFFSET)  # of the cell\n"
        )
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, name, "exec"), namespace)
        carry = network.carry

        def forget_and_carry(*message: Any) -> None:
            linecache.cache.pop(name, None)  # as on another machine
            carry(*message)

        with monkeypatch.context() as patch:
            patch.setattr(network, "carry", forget_and_carry)
            cell = network.mesh(gpus=1).spawn("cell", namespace["Cell"]).slice(gpus=0)
        cell.initialized.get(TIMEOUT_S)
        said = str(cell.fail.call_one().exception(TIMEOUT_S))
        assert "raise ValueError(OFFSET)  # of the cell" in said
        assert "ValueError: 40" in said
        del linecache.cache[name]
