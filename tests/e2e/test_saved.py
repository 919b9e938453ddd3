"""A saved notebook is read by people who have no kernel, no ranks and perhaps no JupyterLab."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from playwright.sync_api import BrowserContext, Page, expect

from e2e.lab import Lab, OpenNotebook

CELLS = (
    "%%mesh\nprint('hello')\nprint('loss', 2.5 - rank / 8)\nrank % 2",
    "%%mesh -t 1\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);",
    "%%mesh\n{}['missing'] if rank == 3 else None",
    "%mesh status",
    "%mesh panel",
)
SHOWN = (
    "[0-3] hello",
    "[2] loss 2.25",
    "Out[0,2]: 0",
    "KeyError: 'missing'",
    "dev · 2 nodes × 2 procs · 4 of 4 ranks alive",
    "in memory · as of",  # the panel as it was
)


def test_a_saved_notebook_reads_well_without_a_kernel(
    open_notebook: OpenNotebook, lab: Lab, browser_context: BrowserContext, tmp_path: Path
) -> None:
    notebook = open_notebook(*CELLS)
    for place in range(1, len(CELLS) + 1):
        notebook.run(place)
    saved = notebook.save()
    lab.shut_kernels_down()

    page = notebook.page
    page.reload()
    assert_reads_well(page)

    # Someone else's: what its cells show is not trusted, so JupyterLab takes out whatever could be harmful.
    saved.cells.append(nbformat.v4.new_markdown_cell("From a colleague"))
    nbformat.write(saved, notebook.path)
    page.reload()
    expect(page.get_by_role("paragraph")).to_be_visible()
    assert_reads_well(page)

    exported = tmp_path / "exported.html"
    exported.write_text(HTMLExporter().from_notebook_node(saved)[0])
    page.goto(exported.as_uri())
    assert_reads_well(page)


def assert_reads_well(page: Page) -> None:
    for text in SHOWN:
        expect(page.locator("body")).to_contain_text(text)
    assert page.locator("img").evaluate_all("images => images.filter(image => image.naturalWidth > 200).length") == 1
