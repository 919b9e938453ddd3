"""Reservations on the shared pool, one for the tests of a module, and what they need to steer cells."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import HAS_FAILED, Gate
from leaks import leaks_of
from monarch_nb.client.bridge import call
from monarch_nb.client.mesh import Mesh
from monarch_nb.client.pool import pool_named, release
from monarch_nb.client.reservation import Reservation, reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

POOLS_OF_MANY = {"shared_pool", "module_pool", "isolated_pool"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def a_failure_stays_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test has left reserved on a pool that others use too is released: they need the slots."""
    kept = [request.getfixturevalue("dev").id] if "dev" in request.fixturenames else []
    yield
    if request.node.stash.get(HAS_FAILED, False) and POOLS_OF_MANY.intersection(request.fixturenames):
        LocalProvisioner().up()  # it may have killed allocators
        for held in call(pool_named(None).reservations()):  # also those that are not ready
            if held.reservation_id not in kept:
                call(release([connection for connection, _ in held.nodes.values()], held.reservation_id))


@pytest.fixture(scope="module")
def dev(shared_pool: list[Node]) -> Iterator[Reservation]:
    """A reservation of 2 nodes × 4 procs for a module's tests, in whose ranks variables stay from test to test."""
    reservation = reserve("dev", nodes=2, procs=4)
    yield reservation
    reservation.release()


@pytest.fixture
def mesh(dev: Reservation, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """The main mesh of `dev`; afterwards nothing runs and every rank lives, whatever the test did."""
    yield dev.mesh
    going_on = [info.title for info in dev.mesh.runs() if not info.done]
    dead = [info.rank for info in dev.mesh.status() if info.state == "dead"]
    if going_on or request.node.stash.get(HAS_FAILED, False):
        dev.mesh.restart()
    elif dead:
        dev.mesh.restart(dead)
    assert not going_on


@pytest.fixture
def fresh_mesh(mesh: Mesh) -> Mesh:
    """The same with fresh ranks: for tests with process groups."""
    mesh.restart()
    return mesh


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A place where cells wait until the test lets them pass."""
    made = Gate(tmp_path)
    yield made
    made.close()


@pytest.fixture
def open_kernel(shared_pool: list[Node], tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    """Start kernels of one notebook."""
    kernels: list[Kernel] = []

    def open_one() -> Kernel:
        kernels.append(Kernel(tmp_path / "a.ipynb"))
        return kernels[-1]

    yield open_one
    try:
        open_one().run("%load_ext monarch_nb\n%mesh release --all")
    finally:
        for kernel in kernels:
            kernel.kill()


@pytest.fixture
def kernel(open_kernel: Callable[[], Kernel]) -> Kernel:
    """A kernel that holds "dev": 2 nodes × 2 procs."""
    opened = open_kernel()
    assert opened.run("%load_ext monarch_nb") == ""
    assert opened.run("%mesh reserve dev --nodes 2 --procs 2").startswith("dev: 2 nodes × 2 procs, 4 ranks ready in ")
    return opened


@pytest.fixture(scope="module")
def module_pool() -> Iterator[list[Node]]:
    """A pool of 2 nodes × 4 procs for the tests of a module that kill allocators."""
    yield from _pool(nodes=2, procs=4)


@pytest.fixture(scope="module")
def isolated_pool() -> Iterator[list[Node]]:
    """A pool of 4 nodes × 2 procs that see no files of the tests, but have copies."""
    yield from _pool(nodes=4, procs=2, isolate=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that a notebook would lie in."""
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def synced(isolated_pool: list[Node], project: Path) -> Iterator[Reservation]:
    """A reservation of 4 nodes × 2 procs, each with a copy of `project`."""
    reservation = reserve("synced", nodes=4, procs=2)
    yield reservation
    LocalProvisioner().up(nodes=4, procs=2)
    reservation.release()
    reservation.files.close()


def _pool(nodes: int, procs: int, *, isolate: bool = False) -> Iterator[list[Node]]:
    with pytest.MonkeyPatch.context() as patch:
        home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))
        patch.setenv(HOME_VARIABLE, str(home))
        yield LocalProvisioner().up(nodes=nodes, procs=procs, isolate=isolate)
        LocalProvisioner().down(force=True)
    leaks = leaks_of(home)
    shutil.rmtree(home)
    assert not leaks, "left behind:\n" + "\n".join(leaks)
