"""Two processes are killed at once, in every pair, while a cell runs and prints: no line is lost or doubled, nothing
runs twice, and the results of the ranks that live are delivered."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Client, Gate, Recorder, parent_of, pids_of
from integration.servers import Server
from leaks import wait_for_end
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import RunFailed
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

local = LocalProvisioner()

VICTIMS = ("allocator", "template", "rank", "kernel", "server")
LINES = 3000
PARTS = 3


@pytest.fixture(scope="module")
def dev(module_pool: list[Node]) -> Iterator[Reservation]:
    """A reservation of 2 nodes × 2 procs on a pool whose processes tests may kill."""
    reservation = reserve("dev", nodes=2, procs=2, preload=[])
    yield reservation
    local.up(2, 4)
    reservation.release()


def printing(first: Gate, second: Gate, ran: Path) -> str:
    """Code that prints numbered lines, in three parts, and leaves a mark each time that it is executed."""
    part = "for i in range({}, {}): print('line', i)"
    parts = [part.format(number * LINES, (number + 1) * LINES) for number in range(PARTS)]
    mark = f"with open(f'{ran}/{{rank}}', 'a') as file: file.write('once')"
    return "\n".join([mark, parts[0], "print('first part')", first.wait, parts[1], second.wait, parts[2], "rank * 2"])


PROGRAM = """
def tell(event):
    if 'first part' in getattr(event, 'text', ''): seen.release()
seen = threading.Semaphore(0)
mesh = monarch_nb.attach('dev').mesh
run = mesh.submit({code!r}, listener=tell)
for _ in mesh.ranks: seen.acquire()
print(run.id)
run.result()
"""


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("line ")]


@pytest.mark.parametrize("pair", list(itertools.combinations(VICTIMS, 2)), ids=" and ".join)
async def test_killed_together(
    pair: tuple[str, str], dev: Reservation, gate: Gate, second_gate: Gate, tmp_path: Path
) -> None:
    mesh = dev.mesh
    mesh.restart()  # from a template that lives
    (ran := tmp_path / "ran").mkdir()
    servers = [Server(tmp_path)] if "server" in pair else []
    for server in servers:  # with a browser that looks at the pool
        await (browser := await server.browser()).until(lambda told: told.view and told.view["reservations"])
        browser.close()
    kernel = Client(PROGRAM.format(code=printing(gate, second_gate, ran)))
    try:
        run_id = kernel.line()
        pids = pids_of(mesh)
        template = parent_of(pids[1])
        find: dict[str, Callable[[], int | None]] = {
            "allocator": lambda: local.nodes()[0].pid,
            "template": lambda: template,
            "rank": lambda: pids[1],
            "kernel": lambda: kernel.process.pid,
            "server": lambda: servers[0].pid,
        }
        doomed = [pid for victim in pair if (pid := find[victim]()) is not None]
        assert len(doomed) == 2
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            wait_for_end(pid, TIMEOUT_S)
        gate.open(4)
        local.up(2, 4)
        followed = Recorder()
        run = mesh.attach_run(run_id, from_start=True, listener=followed)
        second_gate.open(4)
        dead = {1} if "rank" in pair else set()
        if dead:
            with pytest.raises(RunFailed):
                run.result(TIMEOUT_S)
        else:
            run.result(TIMEOUT_S)
        assert run.kept_values == [None if rank in dead else rank * 2 for rank in range(4)]
        followed.wait_for(lambda told: told.of(events.Finished))
    finally:
        kernel.close()
        for server in servers:
            server.kill()
    assert_whole(mesh, run.number, followed, dead)
    assert {path.name: path.read_text() for path in ran.iterdir()} == dict.fromkeys("0123", "once")
    if dead:
        mesh.restart(dead)
    assert mesh.run("rank").values == [0, 1, 2, 3]


def assert_whole(mesh: Mesh, number: int, followed: Recorder, dead: set[int]) -> None:
    """Each line is in the log once and in order, and who followed the run was told of each at most once: what came too
    fast is counted."""
    for rank in range(4):
        logged = numbers([record.text for record in mesh.logs(ranks=[rank], run=number)])
        assert logged == list(range(LINES if rank in dead else PARTS * LINES)), f"rank {rank}"
        shown = numbers(followed.text(rank).splitlines())
        assert shown == sorted(set(shown)), f"rank {rank}"
        elided = sum(event.lines for event in followed.of(events.Elided) if event.rank == rank)
        assert followed.text(rank).count("\n") + elided == len(logged) + 1, f"rank {rank}"
