"""Actors from programs: lines have their ranks, actors outlive the program, and what was made for it goes with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S
from integration.terminals import AtTerminal
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation

pytestmark = pytest.mark.shape(nodes=2, procs=2)

GREETER = """
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint, this_host

class Greeter(Actor):
    @endpoint
    def greet(self):
        print("hello")
        return current_rank().rank

    @endpoint
    def nested(self):
        procs = this_host().spawn_procs({"procs": 2}, name="nested")
        ranks = list(procs.spawn("more", Greeter).greet.call().get(60).values())
        procs.stop().get(60)
        return ranks

if __name__ == "__main__":
"""


def run(directory: Path, body: str) -> list[str]:
    """Run a program; return what it prints."""
    program = directory / "program.py"
    program.write_text(GREETER + "".join(f"    {line}\n" for line in body.splitlines()))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_lines_have_their_ranks_and_actors_outlive_the_program(dev: Reservation, tmp_path: Path) -> None:
    spawned = run(tmp_path, 'monarch_nb.attach("dev").mesh.spawn("greeters", Greeter).greet.call().get()')
    assert sorted(spawned) == [f"[{rank}] hello" for rank in range(4)]
    found = run(tmp_path, 'print(sum(monarch_nb.attach("dev").actors["greeters"].greet.call().get().values()))')
    assert "6" in found


def test_an_actor_starts_processes_through_its_program(dev: Reservation, tmp_path: Path) -> None:
    body = 'print(monarch_nb.attach("dev").mesh.slice(hosts=1, procs=0).spawn("one", Greeter).nested.call_one().get())'
    assert "[0, 1]" in run(tmp_path, body)


def test_a_program_that_uses_nothing_leaves_nothing(dev: Reservation, tmp_path: Path) -> None:
    body = 'print(this_host().spawn_procs({"gpus": 2}).spawn("greeters", Greeter).greet.call().get().sizes)'
    before = {info.name for info in list_reservations()}
    assert "{'gpus': 2}" in run(tmp_path, body)
    assert {info.name for info in list_reservations()} == before


STOPS = """
trainers = monarch_nb.attach("dev").mesh.spawn("stoppers", Stopper)
print("sum", sum(trainers.step.call(10).get().values()))
"""


def test_a_program_at_a_terminal_asks_and_another_goes_on(dev: Reservation, tmp_path: Path) -> None:
    greeter, main = GREETER.split("if __name__")
    stopper = (
        "class Stopper(Actor):\n    @endpoint\n    def step(self, n):\n        loss = n + current_rank().rank\n"
        "        breakpoint()\n        return loss\n\n"
    )
    program = tmp_path / "stops.py"
    program.write_text(
        greeter + stopper + f"if __name__{main}" + "".join(f"    {line}\n" for line in STOPS.split("\n"))
    )
    terminal = AtTerminal([sys.executable, str(program)], tmp_path)
    while terminal.shows("monarch_dbg> ").count("| stoppers ") < 4:  # some stop after the prompt has opened
        terminal.type("list")
    terminal.type("attach stoppers 2")
    terminal.shows("(Pdb) ")
    terminal.type("loss = 50")
    terminal.shows("(Pdb) ")
    terminal.type("detach")
    terminal.shows("monarch_dbg> ")
    terminal.type("continue")
    terminal.shows("sum 84")
    assert terminal.end() == 0
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path)
    assert "sum 46" in done.stdout
    assert "passed: nobody can answer here" in done.stderr
