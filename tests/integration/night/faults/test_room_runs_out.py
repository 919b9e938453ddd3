"""A node runs out of something: who asks learns what and where, the allocator lives, and goes on when there is room."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, eventually, kill, pids_of
from integration.night.faults.room import full_disk, little_memory, no_descriptors, no_inodes, small_disk
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import MonarchNbError, RunFailed
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()


@pytest.fixture
def small_home(request: pytest.FixtureRequest, pool_home: Path) -> Iterator[Path]:
    """The directory of a pool of one node × 4 procs, on a small disk."""
    with small_disk(pool_home, request.param):
        local.up(nodes=1, procs=4)
        yield pool_home
        local.down(force=True)


def refused(ask: Callable[[], object], why: str) -> None:
    """What is asked for fails with an error that names the node, and says why."""
    with pytest.raises(MonarchNbError, match="node0") as raised:
        ask()
    assert re.search(why, str(raised.value))
    assert "Traceback" not in str(raised.value)


def assert_works(mesh: Mesh) -> None:
    """Cells run and print, values come and go, and ranks are started."""
    recorder = Recorder()
    assert mesh.run("print('works', rank)\nrank", listener=recorder).values == [0, 1]
    assert recorder.text().count("works") == 2
    mesh.push({"large": bytes(1 << 20)})
    assert mesh.pull("len(large)") == [1 << 20] * 2
    reserve("another", procs=1).release()
    mesh.restart([1])
    assert mesh.run("rank").values == [0, 1]


def leases_of(node: Node) -> list[str]:
    """Return the reservations that a node has written down."""
    with sqlite3.connect(NodePaths(node.directory).database) as database:
        return [key for (key,) in database.execute("SELECT key FROM record WHERE kind = 'lease'")]


def lost(mesh: Mesh) -> list[str]:
    """Run a cell that prints; return what is said of output that was lost."""
    recorder = Recorder()
    assert mesh.run("for i in range(9999): print('line', i)\nrank", listener=recorder).values == [0, 1]
    return [notice.text for notice in recorder.of(events.Notice) if notice.key == "loss"]


@pytest.mark.parametrize("small_home", ["size=24m"], indirect=True, ids=["24 MB"])
def test_a_full_disk(small_home: Path) -> None:
    dev = reserve("dev", procs=2)
    [before] = local.nodes()
    assert before.pid is not None
    with full_disk(small_home):
        assert "ranks 0-1 on node0: output was lost: No space left on device" in lost(dev.mesh)
        for size in (1 << 20, 1):
            refused(partial(dev.mesh.push, {"value": bytes(size)}), "No space left on device: make room on .*node0")
        assert reserve("late", procs=1).mesh.run("rank").values == [0]
    eventually(lambda: len(leases_of(before)) == 2)  # what had no room is written down when there is some
    assert_works(dev.mesh)
    assert local.nodes() == [before]
    dev.mesh.run("kept = rank")
    with full_disk(small_home):
        kill(before.pid)
        local.up()
        assert attach("dev").mesh.run("kept").values == [0, 1]
    assert attach("late").mesh.run("rank").values == [0]


def test_an_allocator_that_finds_no_room_says_where(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with small_disk(home, "size=64k"):
        node = home / "node0"
        node.mkdir(mode=0o700)
        with full_disk(home):
            words = [sys.executable, "-m", "monarch_nb.allocator", "--directory", str(node), "--preload", ""]
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.endswith(f": make room on the disk of {node}")


@pytest.mark.parametrize("small_home", ["nr_inodes=300"], indirect=True, ids=["300 inodes"])
def test_no_inodes(small_home: Path) -> None:
    dev = reserve("dev", procs=2)
    [before] = local.nodes()
    with no_inodes(small_home):
        assert "on node0: output was lost: No space left on device" in lost(dev.mesh)[-1]
        for ask in (
            lambda: dev.mesh.push({"large": bytes(1 << 20)}),
            lambda: reserve("another", procs=1),
            lambda: dev.mesh.restart([1]),
        ):
            refused(ask, "No space left on device")
    dev.mesh.restart([1])
    assert_works(dev.mesh)
    assert local.nodes() == [before]
    dev.release()


def test_no_descriptors(spare_pool: list[Node], gate: Gate) -> None:
    dev = reserve("dev", procs=2)
    before = local.nodes()
    assert before[0].pid is not None
    victim = pids_of(dev.mesh)[0]
    with no_descriptors(before[0].pid):
        assert dev.mesh.run("print('no files are needed for that')\nrank").values == [0, 1]
        for ask in (lambda: reserve("another", procs=1), lambda: dev.mesh.restart([1])):
            refused(ask, "Too many open files")
        run = dev.mesh.select([0]).submit(gate.wait)
        kill(victim)
        with pytest.raises(RunFailed, match=r"rank 0 \(\w+\): RankDied: killed by signal 9"):
            run.result(TIMEOUT_S)
    dev.mesh.restart()
    assert_works(dev.mesh)
    assert local.nodes() == before
    dev.release()


def test_no_memory(dev: Reservation) -> None:
    """A rank is killed by the kernel for the memory that it takes."""
    mesh, before = dev.mesh, local.nodes()
    with little_memory(pids_of(mesh)[3], 64 << 20), pytest.raises(RunFailed) as raised:
        mesh.run("if rank == 3: large = bytearray(1 << 30)\nrank")
    [failure] = raised.value.failures.values()
    assert (failure.rank, failure.host, failure.signal) == (3, "node0", 9)
    assert "out of memory" in failure.message
    assert raised.value.run.values == [0, 1, 2, None, 4, 5, 6, 7]
    mesh.restart([3])
    assert mesh.run("rank").values == list(range(8))
    assert local.nodes() == before
