"""A gateway with rooms that are this very user's: what people do with a node goes on as ever. What separates accounts
is tried in tests/integration/night/warden."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.hosts.elastic import kill
from integration.hosts.lab import Allocator, Lab
from integration.hosts.people import Person
from integration.live import TIMEOUT_S, eventually
from monarch_nb import Reservation, list_reservations, reserve
from monarch_nb.errors import MonarchNbError

PLAIN = ["--plain-rooms"]


@pytest.fixture
def node(lab: Lab) -> Allocator:
    return lab.start(procs=4, flags=PLAIN)


@pytest.fixture
def dev(node: Allocator) -> Iterator[Reservation]:
    held = reserve("dev", procs=2, preload=[])
    yield held
    held.release()


def room_of(node: Allocator, account: str) -> int:
    """Return the process of a room."""
    return int(json.loads((node.paths.directory / "rooms" / account / "node.json").read_text())["pid"])


def test_cells_output_status_and_release_go_through_the_gateway(node: Allocator, dev: Reservation) -> None:
    run = dev.mesh.run("print('rank', rank); rank * 2")
    assert run.values == [0, 2]
    assert [line.text for line in dev.mesh.logs()] == ["rank 0\n", "rank 1\n"]
    [held] = list_reservations()
    assert (held.name, held.owner, held.procs) == ("dev", "alice", 2)
    with pytest.raises(MonarchNbError, match="2 of 4 procs free"):
        reserve("more", procs=3, preload=[])


ACTORS = """
import monarch_nb
from monarch_nb.actor import Actor, endpoint

class Counter(Actor):
    @endpoint
    async def count(self, data):
        return len(data)

held = monarch_nb.reserve("counting", procs=2, preload=[])
counters = held.mesh.spawn("counters", Counter)
for size_bytes in (10, 5_000_000):
    print(list(counters.count.call(b"x" * size_bytes).get(timeout=60).values()))
held.release()
"""


def test_actors_answer_through_the_gateway(lab: Lab, node: Allocator, tmp_path: Path) -> None:
    assert Person(lab, "bob", tmp_path).run(ACTORS) == ["[10, 10]", "[5000000, 5000000]"]


@pytest.mark.slow
def test_ranks_outlive_room_and_gateway_and_a_run_goes_on_meanwhile(
    lab: Lab, node: Allocator, dev: Reservation
) -> None:
    dev.mesh.run("kept = 7")
    os.kill(room_of(node, "alice"), signal.SIGKILL)
    assert dev.mesh.run("kept += 1; kept").values == [8, 8]
    kill(node)
    lab.start(procs=4, directory=node.paths.directory, number=1, flags=[*PLAIN, "--listen", node.address])
    assert dev.mesh.run("kept += 1; kept").values == [9, 9]
    assert [line.text for line in dev.mesh.logs()] == []


@pytest.mark.slow
def test_each_person_has_a_room_and_runs_cells_in_anothers_only_when_let_in(
    lab: Lab, node: Allocator, dev: Reservation, tmp_path: Path
) -> None:
    bob = Person(lab, "bob", tmp_path)
    own = "held = monarch_nb.reserve('own', procs=1, preload=[]); print(held.mesh.run('rank').values); held.release()"
    assert bob.run(f"import monarch_nb; {own}") == ["[0]"]
    assert {path.name for path in (node.paths.directory / "rooms").iterdir()} == {"alice", "bob"}
    into = """
import monarch_nb
try:
    print(monarch_nb.attach("dev").mesh.run("__import__('os').getppid()").values)
except monarch_nb.MonarchNbError as error:
    print(type(error).__name__)
"""
    assert bob.run(into) != [str(dev.mesh.run("__import__('os').getppid()").values)]
    dev.share("bob", "run")
    assert bob.run(into) == [str(dev.mesh.run("__import__('os').getppid()").values)]


@pytest.fixture
def two(lab: Lab) -> Lab:
    """Two nodes with gateways."""
    for _ in range(2):
        lab.start(procs=2, flags=PLAIN)
    return lab


ACROSS = """
import sys
import monarch_nb
from monarch_nb.actor import Actor, endpoint

class Counter(Actor):
    @endpoint
    async def count(self, data):
        return len(data)

class Asker(Actor):
    @endpoint
    async def ask(self, others, size_bytes):
        return list((await others.count.call(b"x" * size_bytes)).values())

held = monarch_nb.reserve("across", nodes=2, procs=1, preload=[])
counters, askers = held.mesh.spawn("counters", Counter), held.mesh.spawn("askers", Asker)
for line in sys.stdin:
    try:
        print(list(askers.ask.call(counters, int(line)).get(timeout=20).values()), flush=True)
    except Exception as error:
        print(type(error).__name__, *str(error).split(), flush=True)
held.release()
"""


def answers(size_bytes: int) -> str:
    return f"[[{size_bytes}, {size_bytes}], [{size_bytes}, {size_bytes}]]\n"


@pytest.mark.parametrize("first", [PLAIN, []])
def test_ranks_of_two_nodes_call_each_other_also_where_one_has_no_gateway(
    lab: Lab, first: list[str], tmp_path: Path
) -> None:
    for flags in (first, PLAIN):
        lab.start(procs=1, flags=flags)
    with Person(lab, "bob", tmp_path).begin(ACROSS) as bob:
        said, errors = bob.communicate("10\n5000000\n", timeout=TIMEOUT_S)
    assert said == answers(10) + answers(5_000_000), errors


@pytest.mark.slow
def test_ranks_call_each_other_again_after_a_gateway_and_a_room_were_killed(lab: Lab, two: Lab, tmp_path: Path) -> None:
    with Person(lab, "bob", tmp_path).begin(ACROSS) as bob:

        def asked() -> str:
            assert bob.stdin is not None
            assert bob.stdout is not None
            bob.stdin.write("10\n")
            bob.stdin.flush()
            print(heard := bob.stdout.readline(), end="")  # shown if it fails
            return heard

        assert asked() == answers(10)
        here, there = two.allocators
        kill(there)
        flags = [*PLAIN, "--listen", there.address]
        lab.start(procs=2, directory=there.paths.directory, number=2, flags=flags)
        eventually(lambda: asked() == answers(10))
        before = room_of(here, "bob")
        os.kill(before, signal.SIGKILL)
        eventually(lambda: asked() == answers(10))  # calls that are under way when an allocator dies are lost
        assert room_of(here, "bob") != before
        _, errors = bob.communicate(timeout=TIMEOUT_S)
    assert bob.returncode == 0, errors
