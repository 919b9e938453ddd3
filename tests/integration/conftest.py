"""Reservations on the shared pool, one for the tests of a module, and what they need to steer cells."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from gpus import FAKE_NVML, FakeGpus
from integration.kernels import Kernel
from integration.live import HAS_FAILED, Gate
from integration.pools import PoolOfMany, as_it_was, make_whole
from monarch_nb.client.connections import session
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.runs import interrupting
from monarch_nb.client.scripts import script
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, PATIENCE_VARIABLE, patience
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner
from scheduling import (  # noqa: F401 (hooks)
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_xdist_make_scheduler,
)

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
    yield
    if request.node.stash.get(HAS_FAILED, False) and POOLS_OF_MANY.intersection(request.fixturenames):
        make_whole(kept="dev" if "dev" in request.fixturenames else "")


@pytest.fixture
def client_home(no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The config directory of a client that has nothing yet. What nodes have in its state directory ends with the test;
    the engine's own fixture looks that no key stays."""
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    no_leaks(home)
    yield config
    shutil.rmtree(config)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that the test starts, and ranks that it reserves, import no torch, which is most of what starting them
    takes: for tests in which no rank needs it. What other processes reserve has it, unless they say `preload=[]`."""
    monkeypatch.setattr("monarch_nb.provision.local.DEFAULT_PRELOAD", ("",))
    monkeypatch.setattr("monarch_nb.config.DEFAULT_PRELOAD", ())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which ranks or nodes do not answer, and somebody has to find out: this process, and those that it
    starts, give up as soon as they do for users."""
    for module, name in ((interrupting, "STOP_WAIT_S"), (script, "STOP_WAIT_S"), (session, "LOOK_PATIENCE_S")):
        monkeypatch.setattr(module, name, getattr(module, name) / patience(1.0))
    monkeypatch.setenv(PATIENCE_VARIABLE, "1")


@pytest.fixture(scope="module")
def dev(shared_pool: list[Node], request: pytest.FixtureRequest) -> Iterator[Reservation]:
    """A reservation for a module's tests, in whose ranks variables stay from test to test: 2 nodes × 4 procs, unless
    the module says another shape, as in `pytestmark = pytest.mark.shape(nodes=1, procs=4)`."""
    shape = request.node.get_closest_marker("shape")
    reservation = reserve("dev", **(shape.kwargs if shape else {"nodes": 2, "procs": 4}))
    yield reservation
    reservation.release()


@pytest.fixture
def hold(shared_pool: list[Node]) -> Iterator[Callable[..., Reservation]]:
    """Reserve nodes for one test alone, as in `hold(nodes=2, procs=2, time="1h")`; it is "dev" if no name is given."""
    held: list[Reservation] = []

    def hold_one(name: str = "dev", **options: Any) -> Reservation:
        held.append(reserve(name, **options))
        return held[-1]

    yield hold_one
    for reservation in held:
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
def actor_mesh(dev: Reservation) -> Iterator[Mesh]:
    """The same for tests that call actors from this process, whose run of calls goes on."""
    yield dev.mesh
    if dead := [info.rank for info in dev.mesh.status() if info.state == "dead"]:
        dev.mesh.restart(dead)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A place where cells wait until the test lets them pass."""
    made = Gate(tmp_path)
    yield made
    made.close()


@pytest.fixture
def second_gate(tmp_path: Path) -> Iterator[Gate]:
    """Another one."""
    made = Gate(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make more of them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path)))


@pytest.fixture
def open_kernel(shared_pool: list[Node], shared_home: Path, tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """Start kernels of one notebook: for tests that need several, or another Python."""
    kernels: list[Kernel] = []

    def open_one(python: Path | None = None, name: str = "a.ipynb") -> Kernel:
        kernels.append(Kernel(tmp_path / name, python))
        return kernels[-1]

    with as_it_was(shared_home):
        yield open_one
        for kernel in kernels:
            kernel.kill()


@pytest.fixture(scope="session")
def _kernels(shared_home: Path) -> Iterator[list[Kernel]]:
    """The kernel of this process, if there is one."""
    kernels: list[Kernel] = []
    yield kernels
    for kernel in kernels:
        kernel.kill()


@pytest.fixture
def prompt(
    shared_pool: list[Node], shared_home: Path, _kernels: list[Kernel], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Kernel]:
    """The kernel of this process, as if it had just started for a notebook in `tmp_path`. Tests may restart or kill
    it."""
    if not _kernels:
        _kernels.append(Kernel(tmp_path / "a.ipynb"))
    [kernel] = _kernels
    kernel.begin(tmp_path / "a.ipynb")
    with as_it_was(shared_home):
        yield kernel
        if request.node.stash.get(HAS_FAILED, False) or not kernel.end():
            kernel.kill()
            _kernels.clear()


@pytest.fixture
def kernel(prompt: Kernel) -> Kernel:
    """It holds "dev": 2 nodes × 2 procs."""
    prompt.run("%load_ext monarch_nb")
    assert "4 ranks ready" in prompt.run("%mesh reserve dev --nodes 2 --procs 2")
    return prompt


@pytest.fixture
def attached(dev: Reservation, prompt: Kernel) -> Kernel:
    """It has attached to the module's `dev`."""
    assert "ranks alive" in prompt.run("%load_ext monarch_nb\n%mesh attach dev")
    return prompt


@pytest.fixture(scope="session")
def _spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolOfMany]:
    found_first = os.pathsep.join(filter(None, [str(FAKE_NVML), os.environ.get("PYTHONPATH")]))
    gpus = {"PYTHONPATH": found_first, "FAKE_NVML": str(tmp_path_factory.mktemp("gpus") / "gpus.json")}
    with PoolOfMany(nodes=2, procs=4, **gpus).closing() as pool:
        yield pool


@pytest.fixture
def spare_pool(_spare: PoolOfMany) -> Iterator[list[Node]]:
    """A pool of 2 nodes × 4 procs beside `shared_pool`, for tests that kill allocators or whose module holds that one.
    Its first node has 8 GPUs."""
    with _spare.in_use() as nodes:
        yield nodes


@pytest.fixture
def gpus(spare_pool: list[Node]) -> Iterator[FakeGpus]:
    """The GPUs of `spare_pool`, which are well before and after."""
    gpus = FakeGpus(Path(os.environ["FAKE_NVML"]))
    yield gpus
    gpus.set()


@pytest.fixture(scope="module")
def module_pool(_spare: PoolOfMany) -> Iterator[list[Node]]:
    """The same for all tests of a module."""
    with _spare.in_use() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def _isolated() -> Iterator[PoolOfMany]:
    with PoolOfMany(nodes=4, procs=2, isolate=True).closing() as pool:
        yield pool


@pytest.fixture(scope="module")
def isolated_pool(_isolated: PoolOfMany) -> Iterator[list[Node]]:
    """A pool of 4 nodes × 2 procs that see no files of the tests, but have copies."""
    with _isolated.in_use() as nodes:
        yield nodes


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
