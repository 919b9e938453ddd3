"""The debugger's prompt as a person in front of JupyterLab has it."""

from __future__ import annotations

import os
import re

from playwright.sync_api import expect

from e2e.lab import NotebookPage, OpenNotebook

STOP = "%%mesh\nprint('begin')\nx = rank * 10\nbreakpoint()\nprint('end', x)"


def answer(notebook: NotebookPage, line: str) -> None:
    """Type a line at the newest prompt of the first cell; those before it stay for a moment."""
    field = notebook.cell(1).locator("input.jp-Stdin-input:not([data-answered])")
    expect(field).to_have_count(1)
    handle = field.element_handle()
    assert handle is not None
    handle.fill(line)
    handle.evaluate("field => field.setAttribute('data-answered', '')")
    handle.press("Enter")


def test_the_prompt_is_below_the_live_output(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(STOP)
    notebook.start(1)
    notebook.wait_for_text(1, "Actor Name")
    answer(notebook, "cast cell ranks(:) p x")
    notebook.wait_for_text(1, re.compile(r"\[3\] 30"))
    answer(notebook, "attach cell 2")
    notebook.wait_for_text(1, "Attached to debug session for cell 2")
    answer(notebook, "x = 25")
    answer(notebook, "detach")
    notebook.wait_for_text(1, "Detached from debug session for cell 2")
    text = notebook.text(1)
    assert text.index("[0-3] begin") < text.index("stopped at a breakpoint") < text.index("Actor Name")
    expect(notebook.cell(1).locator("input.jp-Stdin-input")).to_have_count(1)
    if folder := os.environ.get("MONARCH_NB_PICTURES"):
        notebook.page.screenshot(path=os.path.join(folder, "debugger.png"))
    answer(notebook, "continue")
    notebook.wait_for_end(1)
    assert "[2] end 25" in notebook.text(1)
    expect(notebook.cell(1).locator("input.jp-Stdin-input")).to_have_count(0)
