"""What people may do with each other's reservations: nothing, or what the owner grants, and no longer than that."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.hosts.lab import Allocator, Lab
from integration.hosts.people import TIMEOUT_S, Person
from integration.live import eventually
from monarch_nb import Reservation, list_reservations, reserve
from monarch_nb.cli.main import main


@pytest.fixture
def node(lab: Lab) -> Allocator:
    return lab.start()


@pytest.fixture
def bob(lab: Lab, node: Allocator, tmp_path: Path) -> Person:
    return Person(lab, "bob", tmp_path)


@pytest.fixture
def dev(node: Allocator) -> Iterator[Reservation]:
    """What alice holds, with a secret in the environment of its ranks."""
    held = reserve("dev", procs=2, preload=[], env={"TOKEN": "hunter2"}, time="8h")
    yield held
    held.release()


class TestStrangers:
    def test_they_see_that_it_is_taken_by_whom_and_until_when_and_nothing_else(
        self, dev: Reservation, bob: Person
    ) -> None:
        dev.mesh.run("print('secret output')")
        (line,) = bob.run(
            "import monarch_nb; (info,) = monarch_nb.list_reservations(); "
            "print(info, info.left and 'ends', info.holder)"
        )
        assert line.endswith("ends alice")
        assert "owner='alice'" in line
        for secret in ("hunter2", "secret", dev.mesh.id, str(Path.cwd())):
            assert secret not in line


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]  # it has ended
    print(line, end="")  # pytest shows what was said when one that is waited for does not come
    return line.rstrip("\n")


def line_with(process: subprocess.Popen[str], *texts: str) -> str:
    while not any(text in (line := line_of(process)) for text in texts):
        pass
    return line


BOBS_VIEW = """
import monarch_nb
dev = monarch_nb.attach("dev")
(hers,) = dev.mesh.runs()
print(hers, dev.mesh.interrupt(), sep="\\n", flush=True)
code = "import time; print('his output'); time.sleep(1000)"
run = dev.mesh.submit(code, listener=lambda event: print(event, flush=True))
later = dev.mesh.submit("1", listener=lambda event: print(event, flush=True))
input()
for ask in (dev.status, dev.mesh.status):
    try:
        ask()
    except monarch_nb.errors.AccessDenied as error:
        print(error, flush=True)
"""
CALLS = """
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint

class Counter(Actor):
    @endpoint
    async def add(self, data):
        assert len(data) == 5_000_000
        return current_rank().rank

dev = monarch_nb.attach("dev")
try:
    print(sorted(dev.mesh.spawn("counters", Counter).add.call(b"x" * 5_000_000).get().values()))
except Exception as error:
    print("refused" if "alice can let you call its actors" in str(error) else str(error))
"""


class TestShares:
    def test_each_sees_whose_cell_runs_and_who_shares_it_no_longer(self, dev: Reservation, bob: Person) -> None:
        assert "issued to 'bbo' in the pool lab; did you mean bob?" in dev.share("bbo")
        dev.unshare("bbo")
        assert dev.share("bob", "run") == ""
        hers = dev.mesh.submit("import time\ntime.sleep(1000)")
        with bob.begin(BOBS_VIEW) as process:
            try:
                assert line_of(process) == "alice's run 1 (import time)"
                assert line_of(process).startswith("alice's run 1 goes on: the owner of the mesh interrupts all cells")
                assert "waits for: alice's run 1" in line_of(process)
                eventually(lambda: len(dev.mesh.runs()) == 3)  # both of his wait for hers
                assert not hers.done
                hers.interrupt()
                while "his output" not in line_of(process):
                    pass
                assert "interrupted bob's run 2 on ranks 0-1" in str(dev.mesh.interrupt())
                heard: list[str] = []
                for stopped in ("dropped by alice before it began", "interrupted by alice"):
                    while not any(stopped in line for line in heard):
                        heard.append(line_of(process))
                dev.unshare("bob")
                said, errors = process.communicate("ended\n", timeout=TIMEOUT_S)
            finally:
                process.kill()
        assert said.splitlines()[-2:] == ["alice no longer shares dev with you (%mesh detach leaves it)"] * 2, errors

    def test_actors_answer_those_who_may_run_cells(self, dev: Reservation, bob: Person) -> None:
        dev.share("bob", "run")
        assert bob.run(CALLS) == ["[0, 1]"]
        dev.share("bob", "read")
        assert bob.run(CALLS.replace("5_000_000", "5")) == ["refused"]


def test_what_a_revoked_person_holds_is_named_and_the_named_command_releases_it(
    bob: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    bob.run("import monarch_nb; monarch_nb.reserve('his', procs=1, preload=[])")
    assert main(["pool", "revoke", "lab", "bob"]) == 0
    told = capsys.readouterr().out
    [command] = re.findall(r"^still held: bob/his, whose ranks go on; monarch-nb (.*) ends them$", told, re.MULTILINE)
    assert main(command.split()) == 0
    assert not list_reservations()
    assert main(["pool", "revoke", "lab", "bob"]) == 0
    assert "still held" not in capsys.readouterr().out
