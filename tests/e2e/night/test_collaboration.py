"""Two browsers on one notebook, which jupyter-collaboration keeps the same in both; one kernel, one mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.reader import NotJSONError
from playwright.sync_api import BrowserContext, expect

import monarch_nb
from e2e.conftest import OPEN_MESH
from e2e.lab import Lab, NotebookPage, own_home, running_lab
from e2e.panel import PanelPage
from integration.live import Gate, eventually
from integration.pools import release_all

PRINTED = "[0-3] begun\n[0-3] done\nOut[0]: 0\nOut[1]: 2\nOut[2]: 4\nOut[3]: 6"


@pytest.fixture
def shared_lab(shared_pool: object) -> Iterator[Lab]:
    with own_home("shared") as folder:
        options = [f"--SQLiteYStore.db_path={folder / 'notebooks.db'}"]  # else where it was started
        with running_lab(folder, options=options, collaborative=True) as lab:
            yield lab
            lab.shut_kernels_down()
    release_all()


@pytest.fixture
def both(shared_lab: Lab, browser_context: BrowserContext) -> Iterator[list[NotebookPage]]:
    """A notebook as two people have it, each with a browser and the panel."""
    browser = browser_context.browser
    assert browser is not None
    path = shared_lab.write("both.ipynb", [OPEN_MESH, "", "%mesh panel"])
    contexts = [browser.new_context(viewport={"width": 1000, "height": 1200}) for _ in range(2)]
    notebooks = [NotebookPage(shared_lab, context.new_page(), path) for context in contexts]
    for notebook in notebooks:
        notebook.open()
        PanelPage(notebook.page).show()
    yield notebooks
    for context in contexts:
        context.close()


def saved_outputs(path: Path, place: int) -> int | None:
    """Return how many outputs of a cell lie on the disk; None while the server writes the notebook there."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except NotJSONError:
        return None
    return len(notebook.cells[place].outputs)


def test_two_people_use_one_mesh(both: list[NotebookPage], make_gate: Callable[[], Gate]) -> None:
    gate, (ada, bob) = make_gate(), both
    ada.run(0)
    bob.wait_for_text(0, "4 ranks ready")
    ada.write(1, f"%%mesh\nprint('begun')\n{gate.wait}\nprint('done')\nrank * 2")
    ada.start(1)
    for notebook in both:
        notebook.wait_for_text(1, "[0-3] begun")
        PanelPage(notebook.page).wait_for_state("running", 0, 1, 2, 3)
    gate.open(4)
    for notebook in both:
        notebook.wait_for_end(1)
        PanelPage(notebook.page).wait_for_state("idle", 0, 1, 2, 3)
    for notebook in both:
        assert notebook.text(1).partition("\n4 ranks")[0] == PRINTED, "and how long it took, if it was long"
    eventually(lambda: saved_outputs(ada.path, 1) == 1)

    bob.run(2)  # a live panel for who ran it; for the other, who has not trusted it, how things were
    expect(bob.output(2).locator(".mnb-card")).to_be_visible()
    ada.wait_for_text(2, "4 idle")

    bob.choose("Kernel", "Restart Kernel…")
    bob.accept("Restart Kernel?")
    bob.wait_for_kernel()
    bob.write(1, "%load_ext monarch_nb\n%mesh attach")
    assert "attached to dev: 2 nodes × 2 procs, 4 ranks alive" in bob.run(1)
    ada.write(1, "%%mesh\nrank * 2")
    ada.run(1)
    bob.wait_for_text(1, "Out[3]: 6")
    assert [held.name for held in monarch_nb.list_reservations()] == ["dev"]
