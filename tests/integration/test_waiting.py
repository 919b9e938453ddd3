"""Reserving what others want too: clients that race, wait in line, give up, and die while they wait."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from integration.live import Client, Gate, client, kill, started
from integration.pools import make_whole
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.events import LINE_NOTICE, Notice
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.known.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.errors import CapacityError
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

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


def test_those_who_wait_are_served_in_order() -> None:
    dev = reserve("dev", nodes=2, procs=4, time="1h")
    me = dev.status().owner
    with in_line(*(waiting(f"w{number}") for number in range(3))) as waiters:
        dev.release()
        for number, waiter in enumerate(waiters):
            read_until(waiter, "has it")
            assert [info.name for info in list_reservations()] == [f"w{number}"]
            for later, place in zip(waiters[number + 1 :], ("1st", "2nd"), strict=False):
                read_until(later, rf"{place} in line: w{number} \({me}\) holds 8 procs")
            attach(f"w{number}").release()
    assert free() == [4, 4]


def test_a_cell_that_goes_on_says_who_waits_for_its_nodes(tmp_path: Path) -> None:
    dev = reserve("dev", nodes=2, procs=4)
    gate = Gate(tmp_path)
    run, recorder = started(dev.mesh, gate.wait)
    says = f"{dev.status().owner} (2 nodes × 4 procs) waits in line for nodes like yours: %mesh release gives them back"

    def said() -> list[str]:
        return [notice.text for notice in recorder.of(Notice) if notice.key == LINE_NOTICE]

    with in_line(waiting("other")):
        recorder.wait_for(lambda _: said() == [says])
    recorder.wait_for(lambda _: said() == [says, ""])
    gate.open(8)
    run.result()
    gate.close()
    dev.release()


def test_the_place_says_who_holds_what_until_when() -> None:
    dev = reserve("dev", nodes=2, procs=4, time="1h")
    with client(waiting("next")) as waiter:
        read_until(waiter, rf"1st in line: dev \({dev.status().owner}\) holds 8 procs until (\S+ )?\d\d:\d\d")


def test_a_waiter_that_is_interrupted_or_killed_leaves_the_line() -> None:
    dev = reserve("dev", nodes=2, procs=4)
    with in_line(waiting("first"), waiting("second"), waiting("third")) as (first, second, third):
        first.interrupt()
        read_until(first, "interrupted")
        read_until(third, "2nd in line: .*")
        kill(second.process.pid)
        read_until(third, "1st in line: .*")
        assert [info.name for info in list_reservations()] == ["dev"]
        dev.release()
        read_until(third, "has it")
        assert [info.name for info in list_reservations()] == ["third"]
        attach("third").release()
    assert free() == [4, 4]


def test_a_first_one_that_is_stopped_and_then_killed_lets_the_next_one_have_its_turn() -> None:
    dev = reserve("dev", nodes=2, procs=4)
    with in_line(waiting("first"), waiting("second")) as (first, second):
        os.kill(first.process.pid, signal.SIGSTOP)
        dev.release()
        assert free() == [4, 4]
        kill(first.process.pid)
        read_until(second, "has it")
        attach("second").release()


def test_the_line_outlives_the_node_that_keeps_it(spare_pool: list[Node]) -> None:
    dev = reserve("dev", nodes=2, procs=4)
    with in_line(waiting("first"), waiting("second", nodes=1)) as (first, second):
        kill(spare_pool[0].pid or 0)
        LocalProvisioner().up()
        dev.release()
        read_until(first, "has it")
        read_until(second, r"1st in line: first \(.*")
        attach("first").release()
        read_until(second, "has it")
        attach("second").release()


def test_whoever_waits_in_vain_is_told(spare_pool: list[Node]) -> None:
    reserve("dev", nodes=1, procs=4)
    said: list[str] = []
    with pytest.raises(
        CapacityError, match=r"waited 2.0 s in line, without success: 2 nodes × 4 procs asked for, but only 1"
    ) as raised:
        reserve("more", nodes=2, procs=4, wait=2, progress=said.append)
    assert "--wait" not in str(raised.value), "who has waited needs not be told to"
    assert any(line.startswith("1st in line: dev (") for line in said)
    with pytest.raises(CapacityError, match=r"^2 nodes × 5 gpus asked for"):
        reserve("more", nodes=2, gpus=5, wait=True)
    assert [info.name for info in list_reservations()] == ["dev"]


def test_a_pool_that_is_free_takes_the_shape_that_is_waited_for(pool_home: object) -> None:
    dev = reserve("dev", nodes=1, procs=1)
    with client(WAIT.replace("procs=4", "procs=2").format(name="wide", nodes=1)) as wide:
        read_until(wide, r"1st in line: dev \(.*")
        dev.release()
        read_until(wide, "has it")
        assert [reply.node.procs for _, reply in call(pool_named(None).ask())] == [2]
        attach("wide").release()
