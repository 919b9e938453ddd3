"""The log viewer: any ranks, search, filter, fold, follow, and the way back to the cell that printed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from e2e.lab import NotebookPage
from e2e.panel import LogPage, PanelPage
from integration.live import Gate, started
from monarch_nb.client.reservations.reservation import Reservation

PRINT = """\
import sys
for step in range(3000):
    print(f'step {step} loss {step % 7}')
print(f'rank {rank} is done', file=sys.stderr)
print('\\033[32mgreen\\033[0m')"""


@pytest.fixture
def log(panel: PanelPage, held: Reservation) -> LogPage:
    """The log of all ranks after each has printed 3001 lines, all but one equal on all."""
    held.mesh.run(PRINT)
    panel.button("Log").click()
    log = LogPage(panel.page)
    log.wait_for_total(3005)
    return log


def test_lines_are_found_filtered_and_folded(log: LogPage) -> None:
    expect(log.line("green").locator(".mnb-line-ranks")).to_have_text("0-3")  # it follows: the end is in sight
    expect(log.line("rank 2 is done")).to_be_visible()

    log.find_field.fill("step 1234 ")
    log.page.keyboard.press("Enter")
    expect(log.hit).to_contain_text("step 1234 loss 2")
    log.find_field.fill("no such line")
    log.page.keyboard.press("Enter")
    expect(log.root.get_by_role("status")).to_have_text("not found")

    log.button("Regular expression").click()
    log.find_field.fill(r"^rank [13] is")
    log.page.keyboard.press("Enter")
    expect(log.hit).to_contain_text("rank 1 is done")
    log.page.keyboard.press("Enter")
    expect(log.hit).to_contain_text("rank 3 is done")
    log.page.keyboard.press("Shift+Enter")
    expect(log.hit).to_contain_text("rank 1 is done")
    log.button("Only matching lines").click()
    log.wait_for_total(2)
    log.find_field.fill("(")
    log.page.keyboard.press("Enter")
    expect(log.root.get_by_role("status")).to_contain_text("regular expression")
    log.find_field.fill("")
    log.wait_for_total(3005)

    log.root.get_by_label("Streams").select_option("stderr")
    log.wait_for_total(4)
    log.root.get_by_label("Ranks", exact=True).fill("1-2")
    log.page.keyboard.press("Enter")
    log.wait_for_total(2)
    log.root.get_by_label("Ranks", exact=True).fill("9")
    expect(log.root.get_by_label("Ranks", exact=True)).to_have_attribute("aria-invalid", "true")
    log.root.get_by_label("Ranks", exact=True).fill("1-2")
    log.root.get_by_label("Streams").select_option("both")
    log.wait_for_total(3003)
    log.root.get_by_label("Fold").select_option("off")
    log.wait_for_total(6004)


def test_a_log_follows_until_one_looks_up(
    panel: PanelPage, log: LogPage, held: Reservation, make_gate: Callable[[], Gate]
) -> None:
    first_batch, second_batch = make_gate(), make_gate()
    run, _ = started(held.mesh, f"print('batch 0')\n{first_batch.wait}\nprint('batch 1')\n{second_batch.wait}")
    expect(log.line("batch 0")).to_be_in_viewport()
    first_batch.open(4)
    expect(log.line("batch 1")).to_be_in_viewport()
    log.root.get_by_role("log", name="Lines of the log").focus()
    log.page.keyboard.press("Home")
    first = log.line("step 0 loss")
    expect(first).to_be_in_viewport()
    expect(log.button("Follow")).to_have_attribute("aria-pressed", "false")
    second_batch.open(4)
    run.wait()
    held.mesh.run("print('later')")
    log.wait_for_total(3005 + 4)
    expect(first).to_be_in_viewport()
    log.button("Follow").click()
    expect(log.line("later")).to_be_in_viewport()
    held.mesh.submit("1 / 0").wait()
    expect(log.line("failed: ZeroDivisionError: division by zero")).to_be_in_viewport()


def test_a_rank_s_log_leads_back_to_the_cell(notebook: NotebookPage, panel: PanelPage, held: Reservation) -> None:
    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("is attached")
    notebook.write(1, "print('mine', rank)")
    notebook.run_on_mesh(1)
    notebook.wait_for_end(1)
    notebook.focus(0)
    panel.rank(2).dblclick()
    log = LogPage(panel.page)
    log.wait_for_total(1)
    expect(log.line("mine 2")).to_be_visible()
    log.button("Show cell").click()
    expect(notebook.cell(1)).to_have_class(re.compile("jp-mod-active"))
    notebook.write(1, "print('something else')")  # the number alone does not say that it is the cell
    log.button("Show cell").click()
    expect(log.root.get_by_role("status")).to_contain_text("print('mine', rank) any more")
    notebook.write(1, "print('again')")
    notebook.run_on_mesh(1)
    notebook.wait_for_end(1)
    expect(log.line("again")).to_be_visible()
    log.root.get_by_label("Jump to run").select_option(index=0)
    log.button("Show cell").click()
    expect(log.root.get_by_role("status")).to_contain_text("any more")
