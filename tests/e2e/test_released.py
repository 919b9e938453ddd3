"""What the panel does where a kernel holds the same: a release reaches it; and what it can not do, it says."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from e2e.lab import OpenNotebook
from e2e.panel import PanelPage
from monarch_nb.provision.local import LocalProvisioner

FOR_EVER = "%%mesh\nimport time\nprint('begun')\nwhile True:\n    time.sleep(0.01)"
RELEASED = re.compile(r"dev was released at \d\d:\d\d in the panel: %mesh reserve dev --nodes \d --procs \d makes")
AWAY = "no node of dev answers: this can be done again as soon as one does"


@contextmanager
def silent() -> Iterator[None]:
    """The allocators stand still: they are there, and do not answer."""
    pids = [node.pid for node in LocalProvisioner().nodes() if node.pid]  # of now: tests before may have ended some
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_release_reaches_the_cell_that_runs_and_those_after_it(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(FOR_EVER, "%%mesh\nrank", "%mesh status")
    panel = PanelPage(notebook.page)
    panel.show()
    notebook.start(1)
    notebook.wait_for_text(1, "begun")
    panel.button("Release…").click()
    panel.button("Release").click()
    notebook.wait_for_end(1)
    assert RELEASED.search(notebook.text(1))
    for place in (2, 3):
        assert RELEASED.search(notebook.run(place))


@pytest.mark.usefixtures("held")
def test_what_needs_a_node_says_so_until_one_answers(panel: PanelPage) -> None:
    panel.wait_for_state("idle", 0, 1, 2, 3)
    refused = [panel.button(name) for name in ("Attach notebook", "Restart…", "Resize…")]
    with silent():
        for button in refused:
            expect(button).to_have_attribute("aria-disabled", "true")
            expect(button).to_have_accessible_description(AWAY)
            button.focus()
            expect(button).to_be_focused()
            panel.page.keyboard.press("Enter")
        expect(panel.question).to_have_count(0)
        expect(panel.form).to_have_count(0)
        expect(panel.button("Release…")).to_be_enabled()
    for button in refused:
        expect(button).to_be_enabled()
    panel.button("Restart…").click()
    expect(panel.question).to_be_visible()
