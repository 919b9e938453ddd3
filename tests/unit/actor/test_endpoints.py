"""What an actor executes: in order, one at a time, unless an endpoint says otherwise."""

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.actor import (
    Actor,
    Port,
    ValueMesh,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)
from monarch_nb.errors import ActorError
from unit.actor.network import TIMEOUT_S, Network

held = threading.Event()
"""Ranks of the tests' network are in this process: what blocks them can be a module's."""


class Notes(Actor):
    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.running = self.most = 0

    @endpoint
    def note(self, value: Any) -> None:
        self.notes.append(value)

    @endpoint
    def notes_so_far(self) -> list[Any]:
        return self.notes

    @endpoint
    def where(self) -> tuple[Any, ...]:
        instance = context().actor_instance
        return current_rank(), instance.rank, current_size(), instance.name, threading.current_thread().name

    @endpoint
    def hold(self) -> None:
        assert held.wait(TIMEOUT_S)

    def plain(self, value: int) -> int:
        return value + 1


class Turns(Actor):
    def __init__(self) -> None:
        self.running = self.most = 0
        self.gate = asyncio.Event()
        self.came = 0

    @endpoint
    async def turn(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1

    @endpoint
    async def at_most(self) -> int:
        return self.most

    @concurrent_endpoint
    async def meet(self, expected: int) -> int:
        self.came += 1
        if self.came == expected:
            self.gate.set()
        await self.gate.wait()
        return self.came

    @concurrent_endpoint
    async def fail(self) -> None:
        raise ValueError("bad")


def test_messages_of_one_sender_are_handled_in_their_order(network: Network) -> None:
    mesh = network.mesh(gpus=2).spawn("notes", Notes)
    first = mesh.slice(gpus=0)
    for number in range(3_000):
        [mesh.note.broadcast, first.note.call_one, mesh.note.call][number % 3](number)
    assert first.notes_so_far.call_one().get(TIMEOUT_S) == list(range(3_000))
    others = [number for number in range(3_000) if number % 3 != 1]
    assert mesh.slice(gpus=1).notes_so_far.call_one().get(TIMEOUT_S) == others


def test_an_async_actor_handles_one_message_at_a_time_but_for_concurrent_endpoints(network: Network) -> None:
    turns = network.mesh(gpus=1).spawn("turns", Turns)
    for call in [turns.turn.call() for _ in range(5)]:
        call.get(TIMEOUT_S)
    assert turns.at_most.call_one().get(TIMEOUT_S) == 1
    assert [call.get(TIMEOUT_S) for call in [turns.meet.call_one(3) for _ in range(3)]] == [3, 3, 3]
    with pytest.raises(ActorError, match="ValueError: bad"):
        turns.fail.call_one().get(TIMEOUT_S)
    assert turns.at_most.call_one().get(TIMEOUT_S) == 1, "it lives"


def test_actors_of_a_process_do_not_wait_for_each_other(network: Network) -> None:
    held.clear()
    mesh = network.mesh(gpus=1)
    blocked, free = mesh.spawn("blocked", Notes), mesh.spawn("free", Notes)
    call = blocked.hold.call_one()
    assert free.notes_so_far.call_one().get(TIMEOUT_S) == []
    held.set()
    call.get(TIMEOUT_S)


def test_a_rank_knows_its_place_in_what_was_called_and_results_have_the_shape_of_the_mesh(network: Network) -> None:
    mesh = network.mesh(hosts=2, gpus=2)
    notes = mesh.spawn("notes", Notes)
    rank, base, size, name, thread = notes.slice(hosts=1).where.call().get(TIMEOUT_S).item(gpus=1)
    assert (repr(rank), repr(base)) == ("{'gpus': 1/2}", "{'hosts': 1/2, 'gpus': 1/2}")
    assert (size, name) == ({"gpus": 2}, "notes")
    assert thread != threading.main_thread().name
    assert notes.slice(hosts=0, gpus=1).where.call_one().get(TIMEOUT_S)[0].rank == 0
    part = mesh.slice(hosts=1).spawn("part", Notes)
    assert [base.rank for _, base, *_ in part.where.call().get(TIMEOUT_S).values()] == [0, 1], "it counts from 0"
    result = notes.notes_so_far.call().get(TIMEOUT_S)
    assert isinstance(result, ValueMesh)
    assert result.sizes == {"hosts": 2, "gpus": 2}
    assert notes.slice(hosts=0, gpus=0).notes_so_far.call().get(TIMEOUT_S).item() == []
    program = context().actor_instance
    assert (program.name, repr(program), current_rank().rank) == ("root", "<root>", 0)


def test_only_endpoints_are_called(network: Network) -> None:
    notes = network.mesh(gpus=1).spawn("notes", Notes)
    with pytest.raises(AttributeError, match=r"has no endpoint 'plain': .* has hold, note, notes_so_far, where"):
        notes.plain(1)


class Responder(Actor):
    def __init__(self) -> None:
        self.port: Any = None

    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int], value: int) -> int:
        port.send(value)
        port.send(value + 1)
        return 99

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int]) -> None:
        threading.Thread(target=port.send, args=[current_rank().rank]).start()

    @endpoint(explicit_response_port=True)
    def refuse(self, port: Port[int]) -> None:
        port.exception(ValueError("px"))


def test_responses_go_through_the_port(network: Network) -> None:
    responder = network.mesh(gpus=2).spawn("responder", Responder)
    assert responder.twice.call(1).get(TIMEOUT_S).values() == [1, 1]
    assert responder.later.call().get(TIMEOUT_S).values() == [0, 1]
    with pytest.raises(ValueError, match=r"^px$"):
        responder.refuse.call().get(TIMEOUT_S)


class Late(Actor):
    flags: list[threading.Event] = []  # noqa: RUF012

    @endpoint
    def when(self) -> int:
        rank = current_rank().rank
        for number in range(rank + 1, 4):
            assert self.flags[number].wait(TIMEOUT_S)
        if not rank:
            raise ValueError("not me")
        return rank


def test_streams_come_in_the_order_of_their_arrival(network: Network) -> None:
    Late.flags = [threading.Event() for _ in range(4)]
    order = []
    assert asyncio.run(_streamed(network.mesh(gpus=3).spawn("notes", Notes))) == [None] * 3
    *others, last = network.mesh(gpus=4).spawn("late", Late).when.stream()
    for future in others:
        order.append(rank := future.get(TIMEOUT_S))
        Late.flags[rank].set()
    assert order == [3, 2, 1]
    assert isinstance(last.exception(TIMEOUT_S), ActorError), "one of a stream may fail"


def test_choose_reaches_one_and_finally_all(network: Network) -> None:
    notes = network.mesh(gpus=2).spawn("notes", Notes)
    for _ in range(100):
        notes.note.choose(1).get(TIMEOUT_S)
    counts = [len(each) for each in notes.notes_so_far.call().get(TIMEOUT_S).values()]
    assert sum(counts) == 100
    assert all(counts)


def test_arguments_are_copies_even_within_a_process(network: Network) -> None:
    mine: list[int] = []
    notes = this_proc().spawn("notes", Notes)
    notes.note.call_one(mine).get(TIMEOUT_S)
    [theirs] = notes.notes_so_far.call_one().get(TIMEOUT_S)
    theirs.append(1)
    assert mine == []


class TestRefused:
    """Before anything is sent."""

    def test_wrong_arguments(self, network: Network) -> None:
        mesh = network.mesh(gpus=2)
        notes = mesh.spawn("notes", Notes)
        sent = network.wire(network.client).sent
        with pytest.raises(TypeError, match=r"^Notes\.note\(value\): missing a required argument: 'value'$") as raised:
            notes.note.call()
        assert "".join(raised.value._render_traceback_()).count("\n") == 0  # type: ignore[attr-defined]
        assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
        wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: notes.note(1, y=2), TypeError, r"notes\.note is an endpoint: use notes\.note\.call\(1, y=2\)"),
            (lambda: notes.note.broadcast(1, 2), TypeError, "too many positional arguments"),
            (lambda: notes.note.stream(1, y=1), TypeError, "unexpected keyword argument 'y'"),
            (lambda: mesh.spawn("notes", Notes, 1), TypeError, "too many positional arguments"),
            (lambda: notes.note.call_one(1), ValueError, "call_one requires exactly 1 actor, but mesh has 2"),
            (lambda: notes.note.call(threading.Lock()), TypeError, r"^notes\.note: argument 1, .*cannot pickle"),
            (lambda: notes.nope, AttributeError, "no endpoint 'nope'"),
            (lambda: notes.load("a"), AttributeError, r"\.actors\['notes'\]\.load\(DIRECTORY\) loads what"),
        ]
        for call, error, said in wrong:
            with pytest.raises(error, match=said):
                call()
        assert network.wire(network.client).sent == sent
        assert network.client.calls() == []

    def test_classes_that_are_no_actors(self, network: Network) -> None:
        class Mixed(Actor):
            @endpoint
            def x(self) -> None: ...

            @endpoint
            async def y(self) -> None: ...

        class Collides(Actor):
            @endpoint
            def stop(self) -> None: ...

        theirs = type("Actor", (), {"__module__": "monarch._src.actor.actor_mesh"})
        for kind, said in (
            (Mixed, r"mixes both async and sync endpoints.*sync: \['x'\] async: \['y'\]"),
            (Collides, "collides with an endpoint name: attribute=stop"),
            (int, r"<class 'int'> must subclass monarch_nb\.actor\.Actor to spawn it here$"),
            (type("Trainer", (theirs,), {}), r"Trainer'> must subclass .*: this is an Actor of torchmonarch's, "),
            (type("Half", (Actor,), {"step": theirs()}), r"Half\.step is an endpoint of torchmonarch's: from mon"),
        ):
            with pytest.raises(ValueError, match=said):
                network.mesh(gpus=1).spawn("none", kind)
        with pytest.raises(ValueError, match="can only wrap async endpoints"):
            concurrent_endpoint(lambda self: None)


class TestSelfCalls:
    class Selfish(Actor):
        @endpoint
        def direct(self, mesh: Any) -> str:
            return str(mesh.other.call().exception(TIMEOUT_S))

        @endpoint
        def other(self) -> int:
            return 1

    class Async(Actor):
        @endpoint
        async def direct(self, mesh: Any) -> str:
            try:
                await mesh.other.call()
            except RuntimeError as error:
                return str(error)
            return "no error"

        @concurrent_endpoint
        async def beside(self, mesh: Any) -> Any:
            return await mesh.other.call_one()

        @endpoint
        async def other(self) -> int:
            return 1

    def test_waiting_for_oneself_is_an_error_but_for_concurrent_endpoints(self, network: Network) -> None:
        for kind in (self.Selfish, self.Async):
            mesh = network.mesh(gpus=2).spawn("selfish", kind)
            first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
            assert "waits for its own actor" in first.direct.call_one(mesh).get(TIMEOUT_S)
        assert first.beside.call_one(first).get(TIMEOUT_S) == 1
        assert first.direct.call_one(second).get(TIMEOUT_S) == "no error", "others of the mesh may be called"


def test_timeouts_consume_nothing(network: Network) -> None:
    held.clear()
    notes = network.mesh(gpus=1).spawn("notes", Notes)
    call = notes.hold.call_one()
    with pytest.raises(TimeoutError, match=r"^notes\.hold was not answered within 0 s; it goes on"):
        call.get(timeout=0)
    many = network.mesh(gpus=3).spawn("many", Notes)
    with pytest.raises(TimeoutError, match=r"^many\.hold was not answered within 0 s by ranks 0-2 of 3; it goes on"):
        many.hold.call().get(timeout=0)
    assert isinstance(call.exception(timeout=0.01), TimeoutError)
    with pytest.raises(ValueError, match="invalid timeout -1: expected a non-negative, finite number of seconds"):
        call.get(-1)
    held.set()
    assert call.get(TIMEOUT_S) is None
    assert call.get(0) is None


async def test_futures_are_awaited_in_any_loop(network: Network) -> None:
    notes = network.mesh(gpus=1).spawn("notes", Notes).slice(gpus=0)
    first = notes.notes_so_far.call_one()
    assert await asyncio.gather(first, notes.note.call_one(1)) == [[], None]
    assert await first == []
    assert await asyncio.wait_for(notes.notes_so_far.call_one().as_asyncio(), TIMEOUT_S) == [1]
    assert await notes is notes


async def _streamed(notes: Any) -> list[Any]:
    return [result async for result in notes.note.stream(1)]


def test_meshes_look_as_people_read_them(network: Network) -> None:
    mesh = network.mesh(hosts=2, gpus=4)
    assert repr(mesh) == "<ProcMesh main: 2 hosts × 4 gpus>"
    assert repr(this_host()) == "<HostMesh 1 host>"
    assert repr(this_host().spawn_procs({"gpus": 2})) == "<ProcMesh 2 gpus>"
