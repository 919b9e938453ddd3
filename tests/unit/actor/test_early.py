"""Messages that come before their actor was spawned, as they can from another node."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.actor import Actor, endpoint
from monarch_nb.actor.engine import mailbox
from monarch_nb.actor.engine.messages import Plain
from monarch_nb.actor.engine.outside import HERE
from monarch_nb.actor.hosts import ProcMesh
from monarch_nb.errors import ActorError
from unit.actor.network import TIMEOUT_S, Network


class Notes(Actor):
    def __init__(self) -> None:
        self.notes: list[int] = []

    @endpoint
    def note(self, number: int) -> list[int]:
        self.notes.append(number)
        return self.notes


class Asker(Actor):
    @endpoint
    def ask(self, notes: Any) -> None:
        for number in range(10):
            notes.note.broadcast(number)
        self.asked = notes.note.call(10)

    @endpoint
    def hear(self) -> Any:
        return self.asked.get(TIMEOUT_S / 2).values()


@pytest.fixture
def late(network: Network, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the client sends to the second node goes there, and is not delivered by itself."""
    carry = network.carry
    messages: list[tuple[Any, ...]] = []

    def carry_late(sender: Any, node: str, *message: Any) -> None:
        if node == "node1" and sender.process.startswith("client/"):
            messages.append((carry, sender, node, *message))
        else:
            carry(sender, node, *message)

    monkeypatch.setattr(network, "carry", carry_late)
    return messages


def spawn(network: Network) -> tuple[ProcMesh, Any]:
    """Have an actor ask others, of which one is not spawned yet."""
    mesh = network.mesh(hosts=2)
    notes, asker = mesh.spawn("notes", Notes), mesh.slice(hosts=0).spawn("asker", Asker)
    asker.ask.call_one(notes).get(TIMEOUT_S)
    return mesh, asker


def test_they_wait_for_the_spawn_and_keep_their_order(network: Network, late: list[tuple[Any, ...]]) -> None:
    _, asker = spawn(network)
    for carry, *message in late:
        carry(*message)
    assert asker.hear.call_one().get(TIMEOUT_S) == [list(range(11))] * 2


@pytest.mark.usefixtures("late")
def test_they_fail_when_no_spawn_comes(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "EARLY_S", 0.01)
    _, asker = spawn(network)
    with pytest.raises(ActorError, match="was never told to spawn it"):
        asker.hear.call_one().get(TIMEOUT_S)


@pytest.mark.usefixtures("late")
def test_an_interrupt_does_not_wait_for_the_spawn(network: Network) -> None:
    mesh, asker = spawn(network)
    network.ranks(mesh)[1].withdraw("")
    with pytest.raises(ActorError, match="before its turn had come"):
        asker.hear.call_one().get(TIMEOUT_S)


def test_what_comes_after_an_interrupt_waits_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []
    given_up: list[mailbox.Message] = []

    def timer(_: float, function: Callable[[], object]) -> SimpleNamespace:
        timers.append(function)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(mailbox.threading, "Timer", timer)
    early = mailbox.Early(given_up.extend)
    first, second = (mailbox.Message("note", None, Plain(1), HERE, 0, None, "", {}) for _ in range(2))
    early.put("notes-1", first)
    assert early.withdraw("") == [first]
    early.put("notes-1", second)
    timers[0]()
    assert given_up == []
    timers[1]()
    assert given_up == [second]
