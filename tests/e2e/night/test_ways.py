"""Nodes of an engine, from the form to the release, without a magic: its machines are processes that wait."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from e2e.lab import NotebookPage
from e2e.panel import PanelPage
from integration.live import eventually
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.config import config_directory
from monarch_nb.provision import jobs

WAITS = re.compile(r"queued job \d+ waits: one is before it")


@pytest.fixture
def free() -> Iterator[Path]:
    """The file whose presence makes machines free; no job and nothing that was entered stays."""
    file = Path.home() / "free"
    yield file
    left = jobs.jobs()
    for job in left:
        jobs.end(job)
    file.unlink(missing_ok=True)
    (config_directory() / "panel.json").unlink(missing_ok=True)
    assert left == []


def test_an_engine_is_asked_waited_for_and_used_from_the_panel(
    notebook: NotebookPage, panel: PanelPage, free: Path
) -> None:
    panel.button("Reserve…").click()
    panel.field("Where").select_option("queue")
    panel.field("Partition").select_option("fast")
    panel.fill(name="dev", nodes="2", kind="procs", per_node="1")
    panel.field("Flags").fill("--nonsense")
    expect(panel.form).to_contain_text("there is no flag --nonsense")
    panel.field("Flags").fill("")
    verdict = panel.form.get_by_role("status")
    expect(verdict).to_have_text("asks queue for 2 nodes × 1 proc; one is before you; ≈ $7.00 an hour")

    panel.submit()
    expect(panel.form).to_contain_text(WAITS)
    panel.button("Cancel").click()
    expect(panel.form).to_contain_text("Cancelled.")
    assert jobs.jobs() == []
    panel.button("Close").click()

    panel.button("Reserve…").click()
    expect(panel.field("Where")).to_have_value("queue")
    expect(panel.field("Partition")).to_have_value("fast")
    expect(panel.field("Nodes")).to_have_value("2")
    panel.fill(name="dev")
    panel.submit()
    expect(panel.form).to_contain_text(WAITS)
    panel.button("Close").click()
    foot = panel.root.get_by_role("list", name="Work in progress")
    expect(foot).to_contain_text(WAITS)
    free.touch()

    expect(panel.chooser).to_contain_text(re.compile(r"queue-dev \(queued job \d+\)"))
    expect(foot).to_have_count(0)
    panel.chooser.select_option("queue-dev")
    expect(panel.card("dev")).to_contain_text("2 nodes × 1 proc · $7.00/h")
    panel.wait_for_state("idle", 0, 1)
    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("is attached")
    assert notebook.save().cells[0].source == "%load_ext monarch_nb\n%mesh attach dev --pool queue-dev"
    notebook.run_on_mesh(1)
    notebook.wait_for_end(1)
    assert "Out[1]: 1" in notebook.text(1)
    expect(panel.status).to_have_text("dev · 2 ranks")

    panel.chooser.select_option("local")
    expect(panel.card("dev")).to_have_count(0)
    panel.status.click()
    panel.button("Release…").click()
    panel.button("Release").click()
    expect(panel.card("dev")).to_have_count(0)
    expect(panel.root).to_contain_text("You hold nothing")
    expect(panel.chooser).to_have_count(0)
    eventually(lambda: jobs.jobs() == [])


def test_the_widget_goes_to_the_pool_that_an_engine_gave_and_back(
    notebook: NotebookPage, free: Path, held: Reservation
) -> None:
    free.touch()
    notebook.write(0, "%load_ext monarch_nb\n%mesh panel")
    notebook.run(0)
    panel = PanelPage(notebook.page, notebook.output(0))
    panel.wait_until_live()
    expect(panel.card("dev")).to_contain_text("2 nodes × 2 procs")
    expect(panel.chooser).to_have_count(0)

    panel.button("Reserve…").click()
    panel.field("Where").select_option("queue")
    panel.fill(name="other", nodes="1", kind="procs", per_node="1")
    panel.submit()
    expect(panel.card("other")).to_contain_text("1 node × 1 proc · $3.50/h")
    expect(panel.card("dev")).to_have_count(0)
    panel.wait_for_state("idle", 0)
    panel.button("Attach notebook").click()
    expect(panel.card("other")).to_contain_text("runs on its rank")
    panel.button("Stacks").click()
    expect(panel.root.locator(".mnb-stacks")).to_contain_text("rank 0")

    panel.chooser.select_option("local")
    expect(panel.card("dev")).to_contain_text("2 nodes × 2 procs")
    panel.chooser.select_option("queue-other")
    panel.button("Release…").click()
    panel.button("Release").click()
    expect(panel.card("dev")).to_be_visible()
    expect(panel.chooser).to_have_count(0)
    eventually(lambda: jobs.jobs() == [])
