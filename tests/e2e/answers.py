"""Answering at the prompt of a cell in JupyterLab."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from e2e.lab import NotebookPage


def prompt(notebook: NotebookPage, cell: int) -> Locator:
    """Wait until a cell asks; return the field. Those before it stay for a moment."""
    field = notebook.cell(cell).locator("input.jp-Stdin-input:not([data-answered])")
    expect(field).to_have_count(1)
    return field


def answer(notebook: NotebookPage, cell: int, line: str) -> None:
    """Type a line at the newest prompt of a cell."""
    handle = prompt(notebook, cell).element_handle()
    assert handle is not None
    handle.fill(line)
    handle.evaluate("field => field.setAttribute('data-answered', '')")
    handle.press("Enter")
