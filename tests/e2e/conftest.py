"""One JupyterLab, one browser and one pool for all these tests; a notebook, its kernel and its mesh for each."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Page

import monarch_nb
from e2e.lab import DARK, LIGHT, Desk, Lab, NotebookPage, OpenNotebook, own_home, running_browser, running_lab
from e2e.panel import PanelPage
from gpus import FAKE_NVML, FakeGpus
from integration.live import Gate
from integration.pools import release_all
from leaks import GRACE_S, processes_of, wait_for_end
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner
from scheduling import (  # noqa: F401 (hooks)
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_xdist_make_scheduler,
)

PICTURES = Path(__file__).parents[2] / "build" / "e2e"
"""Where a failed test leaves what the page looked like."""
ENGINE = Path(__file__).parents[1] / "queueing"
"""An engine, `--on queue`, as it is installed."""
BASE_URL = "/hub/user/ada/"
"""As behind JupyterHub: whatever forgets it finds nothing."""
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"


@pytest.fixture(scope="session")
def workplace() -> Iterator[Path]:
    """The folder in which all programs of these tests keep what they keep."""
    with own_home("e2e") as folder:
        yield folder
        for process in processes_of(folder):
            wait_for_end(process.pid, GRACE_S)
        leaks = processes_of(folder)
    assert not leaks, "left behind:\n" + "\n".join(map(str, leaks))


@pytest.fixture(scope="session")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGpus]:
    """The 8 GPUs of the pool's first node."""
    file = tmp_path_factory.mktemp("gpus") / "gpus.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE_NVML), str(ENGINE)]))
        patch.syspath_prepend(ENGINE)
        patch.setenv("FAKE_NVML", str(file))
        yield FakeGpus(file)


@pytest.fixture(scope="session")
def shared_pool(shared_home: Path, gpus: FakeGpus) -> list[Node]:
    """A pool of 2 nodes × 4 procs, the first with GPUs, for the whole session."""
    return LocalProvisioner().up(nodes=2, procs=4)


@pytest.fixture(scope="session")
def lab(workplace: Path, shared_home: Path, shared_pool: list[Node]) -> Iterator[Lab]:
    with running_lab(workplace, BASE_URL) as lab:
        yield lab
    shutil.rmtree(shared_home / "notebooks", ignore_errors=True)  # what is remembered of notebooks is meant to stay


@pytest.fixture(scope="session")
def browser_context(lab: Lab) -> Iterator[BrowserContext]:
    """A browser that keeps JupyterLab's files, so that only the first page loads them."""
    with running_browser() as browser:
        yield browser.new_context(viewport={"width": 1000, "height": 1200})


@pytest.fixture(scope="session")
def desk(lab: Lab, browser_context: BrowserContext) -> Desk:
    return Desk(lab, browser_context)


@pytest.fixture(params=[LIGHT, DARK])
def theme(request: pytest.FixtureRequest, lab: Lab, desk: Desk) -> Iterator[str]:
    """A page keeps the theme that it was loaded with."""
    desk.leave()
    lab.use_theme(request.param)
    yield request.param
    lab.use_theme(LIGHT)
    desk.leave()


@pytest.fixture
def page(request: pytest.FixtureRequest, lab: Lab, desk: Desk) -> Iterator[Page]:
    """A JupyterLab with nothing open; what the test leaves in it and on the pool ends with it."""
    page = desk.page()
    failed = request.session.testsfailed
    errors: list[str] = []

    def hear(error: Error) -> None:
        errors.append(error.stack or str(error))

    def read(said: ConsoleMessage) -> None:
        if said.type == "error":
            errors.append(f"{said.text} {said.location}")

    page.on("pageerror", hear)
    page.on("console", read)
    yield page
    try:
        if request.session.testsfailed > failed and not page.is_closed():
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURES / f"{_name(request)}.png")
            desk.leave()
        else:
            desk.clear()
        page.remove_listener("pageerror", hear)
        page.remove_listener("console", read)
        ours = [error for error in errors if "extensions/monarch-nb" in error and "net::ERR" not in error]
        assert not ours, "the panel's code failed:\n" + "\n".join(ours)
    finally:
        lab.shut_kernels_down()
        release_all()


@pytest.fixture
def open_notebook(request: pytest.FixtureRequest, lab: Lab, page: Page) -> OpenNotebook:
    """Open a notebook of some code cells; the first one, which has run then, holds 2 × 2 ranks."""

    def open_one(*cells: str) -> NotebookPage:
        notebook = NotebookPage(lab, page, lab.write(f"{_name(request)}.ipynb", [OPEN_MESH, *cells]))
        notebook.open_here()
        notebook.run(0)
        return notebook

    return open_one


@pytest.fixture
def notebook(request: pytest.FixtureRequest, lab: Lab, page: Page) -> NotebookPage:
    """A notebook of one cell, `rank`, that is open, holds nothing, and has a kernel."""
    notebook = NotebookPage(lab, page, lab.write(f"{_name(request)}.ipynb", ["rank"]))
    notebook.open_here()
    return notebook


@pytest.fixture
def panel(notebook: NotebookPage) -> PanelPage:
    """The panel beside `notebook`."""
    panel = PanelPage(notebook.page)
    panel.show()
    return panel


@pytest.fixture
def held(notebook: NotebookPage) -> Reservation:
    """2 × 2 ranks, `dev`, that `notebook` holds."""
    return monarch_nb.reserve("dev", nodes=2, procs=2, notebook=str(notebook.path))


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make places where cells wait until the test lets them pass: nothing depends on how fast anything is."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path)))


def _name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)
