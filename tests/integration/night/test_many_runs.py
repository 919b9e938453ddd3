"""Far more runs than files: what they printed is put together, and every line is found by run, rank and stream."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from integration.live import Gate, eventually, kill
from integration.pools import PoolOfMany
from monarch_nb.allocator.logs.archive import Archive
from monarch_nb.allocator.logs.archiving import AT_ONCE, NEWEST
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection, close_all
from monarch_nb.client.logs.lines import LogLines, LogWindow
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.runs.run import Run
from monarch_nb.config import NodePaths
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

RANKS = 2
IN_FLIGHT = 16
PRINT = "print('out {0} of', rank)\nimport sys\nprint('err {0} of', rank, file=sys.stderr)"
FILES_AT_MOST = 2 * (NEWEST + AT_ONCE + IN_FLIGHT) * (1 + 3 * RANKS)


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolOfMany]:
    with PoolOfMany(nodes=1, procs=RANKS).closing() as made:
        yield made


@pytest.fixture
def held(pool: PoolOfMany) -> Iterator[Reservation]:
    with pool.in_use():
        yield reserve("dev", nodes=1, procs=RANKS, preload=[])


def print_in(mesh: Mesh, names: range) -> list[Run]:
    """Have every rank print a line to each stream in a run for each name; some runs wait at a time."""
    runs: list[Run] = []
    for name in names:
        runs.append(mesh.submit(PRINT.format(name), want_value=False, sync=False))
        if len(runs) >= IN_FLIGHT:
            runs[-IN_FLIGHT].join()
    return runs


def node_of_pool() -> Node:
    (node,) = LocalProvisioner().nodes()
    return node


def files_of(node: Node) -> int:
    return sum(len(directories) + len(files) for _, directories, files in os.walk(node.directory))


def loose(node: Node, mesh: Mesh) -> set[int]:
    """The outputs that have files of their own."""
    return {int(path.name) for path in NodePaths(node.directory).runs(mesh.id).iterdir()}


def expected(runs: list[Run], names: range) -> Counter[tuple[int, int, str, str]]:
    return Counter(
        (run.number, rank, stream, f"{stream[3:]} {name} of {rank}\n")
        for run, name in zip(runs, names, strict=True)
        for rank in range(RANKS)
        for stream in ("stdout", "stderr")
    )


def everything(mesh: Mesh) -> Counter[tuple[int, int, str, str]]:
    return Counter((record.run, record.rank, record.stream, record.text) for record in mesh.logs())


@pytest.mark.slow
def test_a_thousand_runs_leave_few_files_and_every_line(held: Reservation) -> None:
    node, mesh = node_of_pool(), held.mesh
    assert node.pid is not None
    names = range(1_000)
    runs = print_in(mesh, names[:50])
    runs[-1].join()
    descriptors = psutil.Process(node.pid).num_fds()
    runs += print_in(mesh, names[50:])
    for run in runs:
        run.join()
    eventually(lambda: files_of(node) < FILES_AT_MOST)
    assert everything(mesh) == expected(runs, names)
    eventually(lambda: psutil.Process(node.pid).num_fds() <= descriptors + 10)

    old = runs[17]
    assert [(record.rank, record.stream) for record in mesh.logs(run=old.number)] == [
        (rank, stream) for rank in range(RANKS) for stream in ("stdout", "stderr")
    ]
    assert [record.text for record in mesh.logs(1, lines=3)] == [
        "err 998 of 1\n",
        "out 999 of 1\n",
        "err 999 of 1\n",
    ]
    log = LogLines(mesh.id, mesh.core.connections, mesh.core.ranks_per_node)
    ((line,),) = call(log.read([LogWindow(old.number, 1, 0, 9)], "stderr"))
    assert (line.stream, line.text) == ("stderr", "err 17 of 1")
    (found,) = call(log.search("17 of", [LogWindow(old.number, 1, 0, 2)]))
    assert list(found) == [0, 1]


@pytest.mark.slow
def test_who_is_killed_while_archiving_loses_nothing(held: Reservation) -> None:
    node, mesh = node_of_pool(), held.mesh
    runs: list[Run] = []
    names = range(0)
    for _ in range(4):
        more = range(names.stop, names.stop + 3 * (NEWEST + AT_ONCE))
        node = node_of_pool()
        assert node.pid is not None
        before = archived(node, mesh)
        runs += print_in(mesh, more)
        names = range(more.stop)
        eventually(lambda: archived(node, mesh) > before)  # noqa: B023
        kill(node.pid)
        LocalProvisioner().up()
    for run in runs:
        run.join()
    assert everything(mesh) == expected(runs, names)
    eventually(lambda: files_of(node) < FILES_AT_MOST)
    assert everything(mesh) == expected(runs, names)


@pytest.mark.slow
def test_clients_and_reservations_leave_nothing(pool: PoolOfMany) -> None:
    with pool.in_use() as (node,):
        allocator = psutil.Process(node.pid)
        reserve("warm", procs=RANKS, preload=[]).release()
        record = str(NodePaths(node.directory).record)
        eventually(lambda: record in [each.path for each in allocator.open_files()])  # it stays open
        descriptors, files, processes = allocator.num_fds(), files_of(node), len(allocator.children(recursive=True))
        call(come_and_go(node, 200))
        for _ in range(20):
            reservation = reserve("dev", procs=RANKS, preload=[])
            print_in(reservation.mesh, range(2))[-1].join()
            reservation.release()
        eventually(lambda: allocator.num_fds() <= descriptors)
        eventually(lambda: files_of(node) <= files)
        eventually(lambda: len(allocator.children(recursive=True)) <= processes)


async def come_and_go(node: Node, count: int) -> None:
    """So many clients connect at once, and go."""
    clients = [Connection(f"client{number}", node.address) for number in range(count)]
    try:
        for client in clients:
            client.ensure_session()
        await asyncio.gather(*(client.check() for client in clients))
    finally:
        await close_all(clients)


def archived(node: Node, mesh: Mesh) -> int:
    archive = Archive(NodePaths(node.directory).runs(mesh.id))
    try:
        return archive.newest
    finally:
        archive.close()


def test_what_an_old_run_has_left_behind_goes_on_printing(held: Reservation, gate: Gate) -> None:
    node, mesh = node_of_pool(), held.mesh
    left = mesh.run(
        f"import subprocess\nprint('begun')\nsubprocess.Popen(['sh', '-c', 'read -r _ < {gate.path}; echo late'])\nNone"
    )
    print_in(mesh, range(3 * (NEWEST + AT_ONCE)))[-1].join()
    eventually(lambda: left.number + 1 not in loose(node, mesh))
    assert left.number in loose(node, mesh)
    with gate.path.open("w") as pipe:
        pipe.write("\n\n")
    texts = Counter({(rank, text): 1 for rank in range(RANKS) for text in ("begun\n", "late\n")})
    eventually(lambda: Counter((record.rank, record.text) for record in mesh.logs(run=left.number)) == texts)
    print_in(mesh, range(3 * AT_ONCE))[-1].join()
    eventually(lambda: left.number not in loose(node, mesh))
    assert Counter((record.rank, record.text) for record in mesh.logs(run=left.number)) == texts
