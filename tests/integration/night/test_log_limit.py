"""Ranks that print more than their node keeps: the oldest goes, and everything that reads it says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import Gate, Recorder, eventually, kill, started
from integration.pools import PoolOfMany
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.logs.lines import LogLines, LogWindow
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import NodePaths
from monarch_nb.notebook.output.logs import shown_logs
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

LIMIT_BYTES = 2_000_000
DROPPED = r"… \d.* [kM]B of earlier lines dropped \(limit 2\.0 MB\)"
ENDLESS = """
n = 0
while True:
    if rank == 0:
        {0}
    else:
        {1}
    for _ in range(9_000):
        print(f"line {{n:7d}} " + "x" * 80)
        n += 1
"""
PRINT = "for i in range({0}):\n    print(f'{1} line {{i:7d}} ' + 'x' * 80)"


@pytest.fixture(scope="module")
def limited_pool() -> Iterator[PoolOfMany]:
    with PoolOfMany(nodes=1, procs=2, MONARCH_NB_LOG_LIMIT="2MB").closing() as pool:
        yield pool


@pytest.fixture
def held(limited_pool: PoolOfMany) -> Iterator[Reservation]:
    with limited_pool.in_use():
        yield reserve("dev", nodes=1, procs=2, preload=[])


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Gate]]:
    """One for each rank: no rank is two turns ahead."""
    made = [Gate(tmp_path), Gate(tmp_path)]
    yield made
    for gate in made:
        gate.close()


def used_bytes(node: Node) -> int:
    files = NodePaths(node.directory).directory.glob("meshes/*/runs/*/*")
    return sum(file.stat().st_blocks * 512 for file in files if file.suffix in (".out", ".err", ".marks"))


def settled(held: Reservation, node: Node) -> None:
    """Wait until there is not too much, and nothing more is being dropped: the node answers, and it stays as it is."""

    def is_settled() -> bool:
        before = used_bytes(node)
        for _ in range(5):
            held.mesh.status()
        return before == used_bytes(node) <= LIMIT_BYTES

    eventually(is_settled)


def log_of(held: Reservation) -> LogLines:
    return LogLines(held.mesh.id, held.mesh.core.connections, held.mesh.core.ranks_per_node)


def test_old_runs_go_and_say_so(held: Reservation) -> None:
    (node,) = LocalProvisioner().nodes()
    mesh = held.mesh
    for run in ("first", "second", "third"):
        mesh.run(PRINT.format(6_000, run))
    settled(held, node)
    lines = list(shown_logs(mesh, 0, None))
    assert re.fullmatch(r"\[0-1\] " + DROPPED, lines[1])
    assert not any("first line" in line or "\0" in line for line in lines)
    assert lines[-1] == "[0-1] third line    5999 " + "x" * 80
    (said,) = (record.text for record in mesh.logs(0, run=1))
    assert re.fullmatch(DROPPED, said.rstrip())
    newest = [record.text.split()[2] for record in mesh.logs(0, lines=2)]
    assert newest == ["5998", "5999"]


def test_an_endless_run_keeps_its_newest_lines_and_every_position(held: Reservation, gates: list[Gate]) -> None:
    (node,) = LocalProvisioner().nodes()
    mesh, log = held.mesh, log_of(held)
    run, _ = started(mesh, ENDLESS.format(*(gate.wait for gate in gates)))
    for turn in range(1, 4):
        for gate in gates:
            gate.open()
        eventually(lambda: sum(counted(log, run.number).values()) >= 2 + 18_000 * turn)  # noqa: B023
        settled(held, node)
    lines = 27_001
    assert counted(log, run.number) == {0: lines, 1: lines}, "lines that were counted keep their numbers"
    windows = [LogWindow(run.number, 0, line, 1) for line in (0, lines - 1)]
    (first,), (last,) = call(log.read(windows))
    assert re.fullmatch(DROPPED, first.text)
    assert last.text.startswith("line   26999 ")
    (found,) = call(log.search("line   26998 ", [LogWindow(run.number, 0, 0, lines)]))
    assert list(found) == [lines - 2]

    said, *kept = (record.text for record in mesh.logs(0, run=run.number))
    assert re.fullmatch(DROPPED, said.rstrip())
    assert [int(text.split()[1]) for text in kept] == list(range(27_000 - len(kept), 27_000))
    assert len(kept) > 3_000

    heard = Recorder()
    mesh.attach_run(run.run_id, from_start=True, listener=heard)
    heard.wait_for(lambda told: "dropped (limit 2.0 MB)" in told.text(0) and "line   26999 " in told.text(0))
    assert "\0" not in heard.text()

    assert node.pid is not None
    kill(node.pid)  # what was dropped is known to the next allocator, too
    LocalProvisioner().up()
    eventually(lambda: set(counted(log_of(held), run.number)) == {0, 1})
    assert counted(log_of(held), run.number)[0] == 1 + len(kept)
    for gate in gates:
        gate.open()
    eventually(lambda: [record.text[:12] for record in mesh.logs(lines=1)] == ["line   35999"] * 2)
    mesh.interrupt()
    settled(held, node)
    assert mesh.run("n").values == [36_000] * 2


def counted(log: LogLines, run: int) -> dict[int, int]:
    """How many lines each rank has printed in a run."""

    async def count() -> dict[int, int]:
        changes = [change async for change in log.watch(run=run, follow=False)]
        return {part.rank: part.stdout_lines for change in changes for part in change.parts}

    return call(count())
