"""A client is killed at every moment of what it does on several nodes: nothing of it stays half made or half ended, and
where the nodes see the client's process they do not wait for it either."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.live import eventually
from integration.night.faults.killed import moments
from integration.patched import patch_allocators
from leaks import processes_of
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import NodePaths
from monarch_nb.provision.local import LocalProvisioner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_torch")]

local = LocalProvisioner()


also_in_flight = pytest.mark.parametrize("in_flight", [False, True], ids=["answered", "in flight"])
"""Whether the call at which the client is killed has not been answered."""


@pytest.fixture
def in_flight() -> bool:
    return False


@pytest.fixture
def home(pool_home: Path, tmp_path: Path, in_flight: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a pool of 2 nodes × 4 procs that see no files of the tests.

    Its nodes wait for a client that may be there still for ever, unless its call may arrive after its end: then nobody
    tells them whose it was.
    """
    patience = f"from monarch_nb import config\nconfig.PROVISIONAL_LEASE_S = {1.0 if in_flight else 3600.0}"
    patch_allocators(monkeypatch, tmp_path / "patched", patience)
    local.up(nodes=2, procs=4, isolate=True)
    return pool_home


@pytest.fixture
def dev(home: Path, project: Path) -> Iterator[Reservation]:
    """2 nodes × 2 procs."""
    reservation = reserve("dev", nodes=2, procs=2)
    yield reservation
    reservation.release()


def pids(home: Path) -> set[int]:
    return {process.pid for process in processes_of(home)}


def held() -> list[HeldReservation]:
    return call(pool_named(None).reservations())


def is_settled() -> bool:
    """Whether nodes have ended what they are to, and nothing is provisional."""
    for node in local.nodes():
        with sqlite3.connect(NodePaths(node.directory).database) as database:
            if database.execute("SELECT 1 FROM record WHERE kind IN ('undertaking', 'owed')").fetchall():
                return False
    return all(status.confirmed for one in held() for _, status in one.nodes.values())


def nodes_that_hold() -> int:
    return sum(len(one.nodes) for one in held())


def settles(condition: Callable[[], object]) -> None:
    eventually(lambda: is_settled() and condition())


@also_in_flight
def test_reserve(home: Path, project: Path, in_flight: bool) -> None:
    before = pids(home)
    for _ in moments("monarch_nb.reserve('half', nodes=2, procs=2, preload=[])", in_flight=in_flight):
        settles(lambda: nodes_that_hold() in (0, 2))
        if held():
            whole = attach("half")
            assert whole.mesh.run("rank").values == [0, 1, 2, 3]
            whole.release()
        eventually(lambda: pids(home) <= before)


def test_release(home: Path, project: Path) -> None:
    before = pids(home)
    reserve("half", nodes=2, procs=2)
    for _ in moments("monarch_nb.attach('half').release()"):
        settles(lambda: not held())
        eventually(lambda: pids(home) <= before)
        reserve("half", nodes=2, procs=2)
    attach("half").release()


SPAWN = """
from monarch_nb.client.connections.bridge import call
dev = monarch_nb.attach('dev')
call(dev.meshes.spawn(dev.meshes.addresses, {'procs': 2}, 'extra'))
"""


def meshes_of_nodes() -> list[set[str]]:
    [dev] = held()
    return [{mesh.name for mesh in status.meshes} for _, status in dev.nodes.values()]


@also_in_flight
def test_spawn(dev: Reservation, home: Path, in_flight: bool) -> None:
    before = pids(home)
    for moment in moments(SPAWN, in_flight=in_flight):
        settles(lambda: meshes_of_nodes() in ([{"main"}] * 2, [{"main", "extra"}] * 2))
        assert moment > 4 or meshes_of_nodes() == [{"main"}] * 2, "it was not whole"
        for mesh in call(dev.all_meshes())[1:]:
            assert mesh.run("rank").values == [0, 1, 2, 3]
            call(dev.meshes.stop(mesh.id))
        eventually(lambda: pids(home) <= before)
    assert dev.mesh.run("rank").values == [0, 1, 2, 3], "what was there is as it was"


def test_restart(dev: Reservation, home: Path) -> None:
    count = len(pids(home))
    for _ in moments("monarch_nb.attach('dev').mesh.restart()"):
        eventually(lambda: {info.state for info in dev.mesh.status()} == {"idle"})
        assert attach("dev").mesh.run("rank").values == [0, 1, 2, 3]
        eventually(lambda: len(pids(home)) == count)
        dev.mesh.restart()
        eventually(lambda: len(pids(home)) == count)


def files_in(directory: Path) -> set[str]:
    """Return the files below a directory."""
    return {os.path.relpath(path, directory) for path in directory.rglob("*") if path.is_file()}


def test_sync(dev: Reservation, project: Path) -> None:
    files = {"a.txt": "a", "folder/b.txt": "b", "large.bin": "x" * 3_000_000}
    expected: dict[str, set[str]] = {}

    def write(text: str) -> None:
        for name, start in files.items():
            path = project / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(start + text)
            expected.setdefault(name, set()).add(start + text)
        (project / f"new-{text}.txt").write_text(text)
        expected[f"new-{text}.txt"] = {text}

    write("first")
    dev.sync()
    [one] = held()
    copies = [NodePaths(node.directory).workspaces / one.reservation_id for node in local.nodes()]
    for moment in moments("monarch_nb.attach('dev').sync()"):
        for tree in [copy / "tree" for copy in copies]:
            for path in files_in(tree):
                assert (tree / path).read_text() in expected[path], "as it was, or as it is, and nothing else"
        found = dev.mesh.run("import pathlib\n{str(p): p.read_text() for p in pathlib.Path().rglob('*.*')}").values
        now = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*.*")}
        assert found == [now] * 4
        eventually(lambda: not any(files_in(copy / "staging") for copy in copies))  # what had come goes with the next
        write(f"at {moment}")
