"""Far more runs than are kept: the newest have every line, found by run, rank and stream."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from integration.live import eventually
from integration.pools import PoolOfMany
from monarch_nb.allocator.logs.stored import DROPPED_TOGETHER, MOST_OUTPUTS, stored_outputs
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
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
    """How many files it has, but for what is kept of reservations that have ended."""
    kept = NodePaths(node.directory).logs
    found = (found for found in os.walk(node.directory) if not Path(found[0]).is_relative_to(kept))
    return sum(len(directories) + len(files) for _, directories, files in found)


def stored(node: Node, mesh: Mesh) -> set[int]:
    """The outputs that there are."""
    return set(stored_outputs(NodePaths(node.directory).runs(mesh.id)))


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
def test_the_newest_thousand_runs_keep_every_line(held: Reservation) -> None:
    node, mesh = node_of_pool(), held.mesh
    assert node.pid is not None
    names = range(MOST_OUTPUTS + 2 * DROPPED_TOGETHER)
    runs = print_in(mesh, names[:50])
    runs[-1].join()
    descriptors = psutil.Process(node.pid).num_fds()
    runs += print_in(mesh, names[50:])
    for run in runs:
        run.join()
    kept = [run for run in runs if run.number in stored(node, mesh)]
    assert MOST_OUTPUTS <= len(kept) < MOST_OUTPUTS + DROPPED_TOGETHER + IN_FLIGHT
    assert kept == runs[-len(kept) :]
    first = len(runs) - len(kept)
    assert everything(mesh) == expected(kept, names[first:])
    eventually(lambda: psutil.Process(node.pid).num_fds() <= descriptors + 10)

    assert list(mesh.logs(run=runs[0].number)) == []
    old = kept[17]
    assert [(record.rank, record.stream) for record in mesh.logs(run=old.number)] == [
        (rank, stream) for rank in range(RANKS) for stream in ("stdout", "stderr")
    ]
    newest = names.stop - 1
    assert [record.text for record in mesh.logs(1, lines=3)] == [
        f"err {newest - 1} of 1\n",
        f"out {newest} of 1\n",
        f"err {newest} of 1\n",
    ]
    log = LogLines(mesh.id, mesh.core.connections, mesh.core.ranks_per_node)
    ((line,),) = call(log.read([LogWindow(old.number, 1, 0, 9)], "stderr"))
    assert (line.stream, line.text) == ("stderr", f"err {first + 17} of 1")
    (found,) = call(log.search(f"{first + 17} of", [LogWindow(old.number, 1, 0, 2)]))
    assert list(found) == [0, 1]


@pytest.mark.slow
def test_clients_and_reservations_leave_nothing(pool: PoolOfMany) -> None:
    with pool.in_use() as (node,):
        allocator = psutil.Process(node.pid)
        warm = reserve("warm", procs=RANKS, preload=[])
        warm.mesh.run("print(1)")
        warm.release()
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
        await asyncio.gather(*(client.close() for client in clients))
