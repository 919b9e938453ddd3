"""One JupyterLab, one browser and one pool for all these tests; a notebook, its kernel and its mesh for each."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

import monarch_nb
from e2e.lab import Lab, NotebookPage, OpenNotebook, home_variables, running_browser, running_lab
from integration.live import Gate
from leaks import GRACE_S, processes_of, wait_for_end
from monarch_nb.provision import Node

PICTURES = Path(__file__).parents[2] / "build" / "e2e"
"""Where a failed test leaves what the page looked like."""
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"


@pytest.fixture(scope="session")
def workplace() -> Iterator[Path]:
    """The folder in which all programs of these tests keep what they keep."""
    folder = Path(tempfile.mkdtemp(prefix="mnb-e2e-", dir="/tmp"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in home_variables(folder).items():
                patch.setenv(name, value)
            yield folder
        for process in processes_of(folder):
            wait_for_end(process.pid, GRACE_S)
        leaks = processes_of(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not leaks, "left behind:\n" + "\n".join(map(str, leaks))


@pytest.fixture(scope="session")
def lab(workplace: Path, shared_home: Path, shared_pool: list[Node]) -> Iterator[Lab]:
    with running_lab(workplace) as lab:
        yield lab
    shutil.rmtree(shared_home / "notebooks", ignore_errors=True)  # what is remembered of notebooks is meant to stay


@pytest.fixture(scope="session")
def browser_context(lab: Lab) -> Iterator[BrowserContext]:
    """A browser that keeps JupyterLab's files, so that only the first page loads them."""
    with running_browser() as browser:
        yield browser.new_context(viewport={"width": 1000, "height": 1200})


@pytest.fixture
def open_notebook(request: pytest.FixtureRequest, lab: Lab, browser_context: BrowserContext) -> Iterator[OpenNotebook]:
    """Open a notebook of some code cells; the first one, which has run then, holds 2 × 2 ranks."""
    page = browser_context.new_page()
    name = re.sub(r"\W", "_", request.node.name)

    def open_one(*cells: str) -> NotebookPage:
        notebook = NotebookPage(lab, page, lab.write(f"{name}.ipynb", [OPEN_MESH, *cells]))
        notebook.open()
        notebook.run(0)
        return notebook

    failed = request.session.testsfailed
    yield open_one
    try:
        if request.session.testsfailed > failed:
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURES / f"{name}.png")
        page.close()
    finally:
        lab.shut_kernels_down()
        for reservation in monarch_nb.list_reservations():
            monarch_nb.attach(reservation.name).release()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make places where cells wait until the test lets them pass: nothing depends on how fast anything is."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Gate(tmp_path)))
