"""Reserving what others want too: clients that race, wait in line, give up, and die while they wait."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from integration.live import Client, client, kill
from integration.pools import make_whole
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.known.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("without_torch")

ROUNDS = 12
RACE = (
    "import monarch_nb\n"
    "print('there', flush=True)\n"
    "while (name := input()):\n"
    "    try:\n"
    "        monarch_nb.reserve(name, nodes=2, procs=4, preload=[])\n"
    "        print('has it', flush=True)\n"
    "    except monarch_nb.errors.CapacityError as error:\n"
    "        print('refused:', str(error).splitlines(), flush=True)\n"
)
WAIT = (
    "import monarch_nb\n"
    "def say(text):\n"
    "    print(text, flush=True)\n"
    "try:\n"
    "    monarch_nb.reserve({name!r}, nodes={nodes}, procs=4, preload=[], wait=True, progress=say)\n"
    "    say('has it')\n"
    "except KeyboardInterrupt:\n"
    "    say('interrupted')\n"
    "input()\n"
)


@pytest.fixture(autouse=True)
def nothing_left(spare_pool: list[Node]) -> Iterator[None]:
    yield
    make_whole()


def waiting(name: str, nodes: int = 2) -> str:
    return WAIT.format(name=name, nodes=nodes)


def read_until(waiter: Client, pattern: str) -> str:
    while not re.fullmatch(pattern, line := waiter.line()):
        pass

    return line


@contextmanager
def in_line(*waiters: str) -> Iterator[list[Client]]:
    """Clients that wait, the first of them first."""
    with ExitStack() as stack:
        clients = []
        for place, waiter in zip(("1st", "2nd", "3rd"), waiters, strict=False):
            clients.append(stack.enter_context(client(waiter)))
            read_until(clients[-1], rf"{place} in line: dev \(.*")
        yield clients


def free() -> list[int]:
    return [reply.node.procs_free for _, reply in call(pool_named(None).ask())]


@pytest.mark.slow
def test_of_two_clients_that_race_one_has_the_nodes_and_the_other_an_error() -> None:
    with client(RACE) as one, client(RACE) as other:
        assert (one.line(), other.line()) == ("there", "there")
        for number in range(ROUNDS):
            names = {one: f"one-{number}", other: f"other-{number}"}
            for each, name in names.items():
                each.tell(name)
            said = {each: each.line() for each in names}
            [winner] = [each for each, line in said.items() if line == "has it"]
            [error] = [line for line in said.values() if line != "has it"]
            assert f"{names[winner]} (" in error
            assert [info.name for info in list_reservations()] == [names[winner]]
            assert free() == [0, 0]
            attach(names[winner]).release()
            assert free() == [4, 4]
        one.tell()
        other.tell()


def test_a_first_one_that_is_stopped_and_then_killed_lets_the_next_one_have_its_turn() -> None:
    dev = reserve("dev", nodes=2, procs=4)
    with in_line(waiting("first"), waiting("second")) as (first, second):
        os.kill(first.process.pid, signal.SIGSTOP)
        dev.release()
        assert free() == [4, 4]
        kill(first.process.pid)
        read_until(second, "has it")
        attach("second").release()


def test_a_pool_that_is_free_takes_the_shape_that_is_waited_for(pool_home: object) -> None:
    dev = reserve("dev", nodes=1, procs=1)
    with client(WAIT.replace("procs=4", "procs=2").format(name="wide", nodes=1)) as wide:
        read_until(wide, r"1st in line: dev \(.*")
        dev.release()
        read_until(wide, "has it")
        assert [reply.node.procs for _, reply in call(pool_named(None).ask())] == [2]
        attach("wide").release()
