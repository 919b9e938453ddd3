"""The panel as a widget, in JupyterLab and in Notebook 7."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

import monarch_nb
from e2e.lab import NotebookPage, OpenNotebook
from integration.live import Gate

RESERVATION = "import monarch_nb\ndev = monarch_nb.attach('dev')\ndev"


def card_of(notebook: NotebookPage, place: int) -> Locator:
    """What a cell's widget shows of the reservation."""
    return notebook.output(place).locator(".mnb-card")


def ranks(card: Locator, state: str) -> Locator:
    return card.locator(f".mnb-rank.mnb-state-{state}")


def wait_for_all_of_it(notebook: NotebookPage, *places: int) -> None:
    """What comes last moves what is below it, and the page may scroll: a click that it moves under is lost."""
    for place in places:
        expect(card_of(notebook, place).get_by_role("button", name="Resize…")).to_be_visible()


def open_in_notebook_7(notebook: NotebookPage) -> None:
    """Leave JupyterLab for Notebook 7, with the kernel that the notebook has."""
    notebook.save()
    notebook.page.goto(notebook.page.url.replace("/lab/tree/", "/notebooks/"))
    expect(notebook.page.locator(".jp-NotebookKernelLogo")).to_be_visible()  # it comes with the kernel
    expect(notebook.output(0)).to_contain_text("4 ranks")


@pytest.mark.parametrize("place", ["lab", "notebook"])
def test_the_widget_shows_ranks_restarts_a_dead_one_and_goes_on_while_a_cell_runs(
    open_notebook: OpenNotebook, make_gate: Callable[[], Gate], place: str
) -> None:
    gate = make_gate()
    notebook = open_notebook(RESERVATION, f"%%mesh -t 1\n{gate.wait}")
    if place == "notebook":
        open_in_notebook_7(notebook)
    notebook.run(1)
    card = card_of(notebook, 1)
    expect(ranks(card, "idle")).to_have_count(4)

    os.kill(monarch_nb.attach("dev").mesh.status()[3].pid, signal.SIGKILL)
    dead = ranks(card, "dead")
    expect(dead).to_have_text("3")
    dead.click()
    card.get_by_role("button", name="Restart… rank 3").click()
    question = card.locator(".mnb-question")
    expect(question).to_contain_text("Nothing is lost: none of these ranks lives.")
    question.get_by_role("button", name="Restart").click()
    expect(ranks(card, "idle")).to_have_count(4)

    notebook.start(2)
    expect(ranks(card, "running")).to_have_text("1")
    card.get_by_role("button", name="Stacks").click()  # this server has subshells: it is answered beside the cell
    expect(card.locator(".mnb-stacks")).to_contain_text(re.compile("ranks? 3.*idle"))  # still the chosen one
    assert notebook.is_running(2)
    gate.open(1)
    notebook.wait_for_end(2)
    expect(ranks(card, "idle")).to_have_count(4)


def test_a_notebook_that_is_closed_and_opened_again_has_its_live_panel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(RESERVATION, "%mesh panel", "%mesh release")
    notebook.run(1)
    notebook.run(2)
    expect(card_of(notebook, 1).locator(".mnb-rank")).to_have_count(4)
    wait_for_all_of_it(notebook, 1, 2)
    card_of(notebook, 1).get_by_role("button", name="Stacks").click()
    expect(card_of(notebook, 1)).to_contain_text("ranks 0-3")
    saved = notebook.save()

    assert (
        saved.cells[1]
        .outputs[0]["data"]["text/plain"]
        .startswith("dev · 2 nodes × 2 procs · 4 idle\n  node0  0-1 idle")
    )
    assert len(saved.cells[2].outputs) == 1
    notebook.choose("File", "Close Tab")
    notebook.page.locator(".jp-DirListing-item", has_text=notebook.path.name).dblclick()
    notebook.wait_for_kernel()
    card = card_of(notebook, 1)
    expect(ranks(card, "idle")).to_have_count(4)
    wait_for_all_of_it(notebook, 1, 2)
    card.get_by_role("button", name="Stacks").click()
    expect(card).to_contain_text("ranks 0-3")
    notebook.run(3)
    released = re.compile(rf"dev was released at \d\d:\d\d in {re.escape(notebook.path.name)}")
    expect(notebook.output(1).locator(".mnb-panel")).to_contain_text(released)
