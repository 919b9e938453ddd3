"""`make demo`'s script, with a notebook that takes a second (the real ones have a test of their own)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SAY_HOME = "import os\nprint(os.environ['MONARCH_NB_HOME'])"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"


def run_demo(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a notebook of these cells; its first cell is a heading."""
    notebook = new_notebook(cells=[new_markdown_cell("# A heading"), *map(new_code_cell, cells)])
    nbformat.write(notebook, folder / "small.ipynb")
    command = [sys.executable, str(SCRIPT), str(folder / "small.ipynb"), "--output", str(folder / "build")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, "COLUMNS": "100"})


def home_of(demo: subprocess.CompletedProcess[str]) -> Path:
    """Where the pool of a demo was, that has run SAY_HOME. Other demos may run at the same time."""
    [home] = set(re.findall(r"/tmp/monarch-nb-demo-\w+", demo.stdout))
    return Path(home)


@pytest.mark.quick
def test_it_shows_cells_and_takes_its_pool_down(tmp_path: Path) -> None:
    reserve = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4"
    hello, many_lines = "%%mesh\nprint('hello from', world_size)", "print(*range(100), sep='\\n')"
    demo = run_demo(tmp_path, reserve, hello, many_lines, SAY_HOME)
    assert (demo.returncode, demo.stderr) == (0, "")
    assert "[1/4] A heading · %load_ext monarch_nb" in demo.stdout
    assert "hello from 8" in demo.stdout
    assert "… 76 more lines in the executed copy" in demo.stdout
    assert "make lab" in demo.stdout
    executed = nbformat.read(tmp_path / "build" / "small.ipynb", as_version=4)
    assert [cell.get("execution_count") for cell in executed.cells[1:]] == [1, 2, 3, 4]
    assert not home_of(demo).exists()


@pytest.mark.parametrize("failing", ["1 / 0", "import os; os._exit(1)"])
def test_a_failing_cell_fails_the_demo(tmp_path: Path, failing: str) -> None:
    demo = run_demo(tmp_path, SAY_HOME, failing, "print('not reached')")
    assert demo.returncode == 1
    assert "not reached" not in demo.stdout
    assert not home_of(demo).exists()
