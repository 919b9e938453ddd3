"""A number of each of 16 ranks, as a person sees it, with a mouse, with a keyboard, and in somebody else's notebook."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

import monarch_nb
from e2e.axe import serious_findings
from e2e.conftest import PICTURES
from e2e.lab import Lab, NotebookPage
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import LocalProvisioner

NUMBERS = "%%mesh\nfloat('nan') if rank == 5 else 9.5 if rank == 11 else 2 + rank / 128"
ROW = "Out[0-15]: 15 numbers from 2.0 (rank 0) to 9.5 (rank 11), median 2.0625 · nan on rank 5 · far from the others: "


RANKS = (0, 5, 7, 15)
COLOUR = "cell => getComputedStyle(cell).backgroundColor"


@pytest.fixture
def ranks(pool_home: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """2 × 8 ranks of a pool of their own; the code of a cell that attaches to them."""
    monkeypatch.setattr("monarch_nb.provision.local.DEFAULT_PRELOAD", ("",))  # no rank here needs torch
    LocalProvisioner().up(nodes=2, procs=8)
    monarch_nb.reserve("dev", nodes=2, procs=8, preload=())
    yield f"import os\nos.environ[{HOME_VARIABLE!r}] = {str(pool_home)!r}\n%load_ext monarch_nb\n%mesh attach dev"
    lab.shut_kernels_down()
    shutil.rmtree(pool_home / "notebooks", ignore_errors=True)  # what is remembered of notebooks is meant to stay


@pytest.fixture
def notebook(theme: str, ranks: str, lab: Lab, page: Page) -> NotebookPage:
    """A notebook whose first cell, which has run, attaches to the ranks."""
    opened = NotebookPage(lab, page, lab.write(f"{theme.replace(' ', '')}.ipynb", [ranks, NUMBERS, "pass"]))
    opened.open_here()
    opened.run(0)
    return opened


def _cell(output: Locator, rank: int) -> Locator:
    return output.locator(f"[title^='rank {rank}: ']")


def test_the_grid_by_mouse_and_by_keyboard(notebook: NotebookPage, lab: Lab, theme: str) -> None:
    page, output = notebook.page, notebook.output(1)
    assert notebook.run(1).splitlines()[0] == f"{ROW}rank 11"

    for rank, text in ((0, "2.0"), (5, "nan"), (11, "9.5"), (15, "2.1172")):
        _cell(output, rank).hover()
        place = _cell(output, rank).bounding_box()
        assert place is not None
        middle = [place["x"] + place["width"] / 2, place["y"] + place["height"] / 2]
        under = page.evaluate("([x, y]) => document.elementFromPoint(x, y).title", middle)
        assert under == f"rank {rank}: {text}"
    assert _cell(output, 11).inner_text() == " ○ "
    assert _cell(output, 5).inner_text() == "nan"
    colours = [_cell(output, rank).evaluate(COLOUR) for rank in RANKS]
    assert len(set(colours)) == len(RANKS)
    expect(output.locator("details pre[tabindex]")).to_have_count(1)

    table = output.locator("details pre")
    expect(table).to_be_hidden()
    notebook.focus(1)
    page.keyboard.press("Escape")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert re.search(r"node1 +8: 2\.0625 +9: 2\.0703125 +10: 2\.078125 +11: 9\.5 ", table.inner_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    output.screenshot(path=PICTURES / f"values-{theme.split()[-1].lower()}.png")
    findings = serious_findings(page, ".jp-OutputArea-output details")
    assert not findings, "\n".join(findings)

    saved = notebook.save()  # somebody else's is not trusted: JupyterLab takes out what it does not know
    saved.cells.append(nbformat.v4.new_markdown_cell("From a colleague"))
    copied = lab.notebooks / f"colleague-{notebook.path.name}"
    nbformat.write(saved, copied)
    NotebookPage(lab, page, copied).open_here()
    theirs = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(1).locator(".jp-Cell-outputArea")
    there = [_cell(theirs, rank).evaluate(COLOUR) for rank in RANKS]
    assert there == colours
    assert _cell(theirs, 5).inner_text() == "nan"
    theirs.locator("summary").click()
    expect(theirs.locator("details pre")).to_be_visible()
    expect(theirs.locator("details pre[tabindex]")).to_have_count(0)  # not trusted indeed
