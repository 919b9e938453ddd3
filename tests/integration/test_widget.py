"""The widget in a real kernel that nobody looks at; with a front end: tests/e2e/test_widget.py."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient import NotebookClient

from integration.live import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("shared_pool")
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"


def test_a_notebook_without_anybody_in_front_gets_what_can_be_saved() -> None:
    cells = [OPEN_MESH, "import monarch_nb\ndev = monarch_nb.attach('dev')\ndev", "dev.mesh.slice(hosts=1)"]
    cells += ["%mesh panel", "%mesh release"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3").execute()
    dev, part, pool = (notebook.cells[place].outputs[0]["data"] for place in (1, 2, 3))
    assert [len(cell.outputs) for cell in notebook.cells[1:4]] == [1, 1, 1]
    assert dev.keys() == part.keys() == pool.keys() == {"text/plain", "text/html"}
    assert dev["text/plain"].splitlines()[:3] == [
        "dev · 2 nodes × 2 procs · 4 idle",
        "  node0  0-1 idle",
        "  node1  2-3 idle",
    ]
    assert part["text/plain"].splitlines()[:2] == ["dev · 2 nodes × 2 procs, ranks 2-3 · 2 idle", "  node1  2-3 idle"]
    assert re.match(
        r"pool local · node0: (\d+ of \d+ gpus free, )?2 of 4 procs free · node1: 2 of 4 procs free\n\ndev · ",
        pool["text/plain"],
    )
    assert "widgets" not in notebook.metadata
