"""The debugger's prompt as a person in front of JupyterLab has it."""

from __future__ import annotations

import re

from playwright.sync_api import expect

import monarch_nb
from e2e.answers import answer, prompt
from e2e.lab import OpenNotebook
from monarch_nb.client.debug.debugger import Debugger

STOP = "%%mesh\nprint('begin')\nx = rank * 10\nbreakpoint()\nprint('end', x)"


def test_the_prompt_is_below_the_live_output(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(STOP)
    notebook.start(1)
    notebook.wait_for_text(1, "Actor Name")
    answer(notebook, 1, "cast cell ranks(:) p x")
    notebook.wait_for_text(1, re.compile(r"\[3\] 30"))
    answer(notebook, 1, "attach cell 2")
    notebook.wait_for_text(1, "Attached to debug session for cell 2")
    answer(notebook, 1, "x = 25")
    answer(notebook, 1, "detach")
    notebook.wait_for_text(1, "Detached from debug session for cell 2")
    text = notebook.text(1)
    assert text.index("[0-3] begin") < text.index("stopped at a breakpoint") < text.index("Actor Name")
    expect(notebook.cell(1).locator("input.jp-Stdin-input")).to_have_count(1)
    answer(notebook, 1, "continue")
    notebook.wait_for_end(1)
    assert "[2] end 25" in notebook.text(1)
    expect(notebook.cell(1).locator("input.jp-Stdin-input")).to_have_count(0)


def test_a_prompt_that_is_answered_elsewhere_goes(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(STOP, "6 * 7")
    notebook.start(1)
    notebook.wait_for_text(1, "Actor Name")
    prompt(notebook, 1)
    assert Debugger(monarch_nb.attach("dev").mesh).continue_all()
    notebook.wait_for_end(1)
    assert "answered elsewhere" in notebook.text(1)
    assert "[2] end 20" in notebook.text(1)
    expect(notebook.cell(1).locator("input.jp-Stdin-input")).to_have_count(0)
    assert notebook.run(2) == "42", "JupyterLab waits for no answer"
