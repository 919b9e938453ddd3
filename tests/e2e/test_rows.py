"""Rows that stand for lines that differ open: in the output of a cell, and in the log viewer."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from e2e.lab import NotebookPage, OpenNotebook
from e2e.panel import LogPage, PanelPage

MORE_RANKS = "%mesh reserve many --nodes 2 --procs 4 --preload json --files none"
STEPS = """\
%%mesh --fold numbers
for step in range(40):
    loss = float('nan') if (step, rank) == (7, 5) else 7.8 + rank / 1000
    print(f'step: {step} loss: {loss:.3f}')"""
CALLS = """\
%mesh fold numbers
import monarch_nb
from monarch_nb.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, number):
        print(f'step: {number} loss: {7.8 + current_rank().rank / 1000:.3f}')

held = monarch_nb.attach("many")
trainers = held.mesh.spawn("trainers", Trainer)
for number in range(8, 12):
    trainers.step.call(number).get()"""
COMMAND = "held.run('echo node $NODE_RANK loss: $NODE_RANK.5')"
OWN = [f"[{rank}] step: 9 loss: {7.8 + rank / 1000:.3f}" for rank in range(8)]


@pytest.mark.slow
def test_a_row_of_a_cell_opens_and_closes(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("%mesh release", MORE_RANKS, STEPS, CALLS, COMMAND, "%mesh release many")
    for place in (1, 2, 3):
        notebook.run(place)
    assert "[0-7] step: 9 loss: 7.800–7.807" in notebook.text(3)
    assert "[0-7] step: 7 loss: 7.800–7.807  [5]! loss: nan" in notebook.text(3)
    odd = notebook.output(3).get_by_role("button", name="step: 7 ")
    odd.click()
    expect(notebook.output(3).locator(".mnb-own-line").nth(5)).to_have_text("[5] step: 7 loss: nan")
    odd.click()
    row = notebook.output(3).get_by_role("button", name="step: 9 ")
    own = notebook.output(3).locator(".mnb-own-line")
    row.click()
    expect(own).to_have_text(OWN)
    notebook.save()
    assert "7.804" not in notebook.path.read_text(), "the notebook holds what its kernel published"
    row.click()
    expect(own).to_have_count(0)
    row.focus()
    notebook.page.keyboard.press("Enter")
    expect(own).to_have_text(OWN)
    expect(notebook.cell(3)).not_to_have_class(re.compile("jp-mod-editing|jp-mod-editMode"))
    _look_into_the_log(notebook)
    _open_rows_of_calls_and_of_a_command(notebook)
    notebook.run(6)
    row.click()
    row.click()
    expect(own).to_contain_text(["was released"])  # a node says so, or the panel's server that has heard of it


def _open_rows_of_calls_and_of_a_command(notebook: NotebookPage) -> None:
    """Plain cells show what actors print, and commands on nodes: their runs are known as well."""
    notebook.run(4)
    notebook.run(5)
    notebook.output(4).get_by_role("button", name="step: 9 ").click()
    expect(notebook.output(4).locator(".mnb-own-line")).to_have_text(OWN)
    notebook.output(5).get_by_role("button", name="loss: 0.5").click()
    expect(notebook.output(5).locator(".mnb-own-line")).to_have_text(["[0] node 0 loss: 0.5", "[4] node 1 loss: 1.5"])


def _look_into_the_log(notebook: NotebookPage) -> None:
    """The same rows open in the log viewer."""
    panel = PanelPage(notebook.page)
    panel.show()
    panel.button("Log").click()
    log = LogPage(notebook.page)
    log.root.get_by_label("Fold").select_option("numbers")
    log.wait_for_total(40)
    log.root.get_by_role("log").focus()
    notebook.page.keyboard.press("Home")
    row = log.line("step: 9 loss")
    expect(row.locator(".mnb-line-text")).to_have_text("step: 9 loss: 7.800–7.807")
    expect(log.line("step: 7 loss").locator(".mnb-line-apart")).to_have_text("[5]! loss: nan")
    own = log.root.locator(".mnb-line-own .mnb-line-text")
    row.click()
    expect(own).to_have_text([line[4:] for line in OWN])
    row.focus()
    notebook.page.keyboard.press("Enter")
    expect(own).to_have_count(0)
    log.root.get_by_label("Fold").select_option("equal")
    log.wait_for_total(320)
