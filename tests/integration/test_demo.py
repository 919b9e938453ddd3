"""`make demo`'s script, with a notebook that takes a second (the real ones have a test of their own)."""

import os
import re
import runpy
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from e2e.lighter import lighter_path

SAY_HOME = "import os\nprint(os.environ['MONARCH_NB_HOME'])"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"


def command_with(folder: Path, *cells: str) -> list[str]:
    """Return how the script is called with a notebook of these cells; its first cell is a heading."""
    notebook = new_notebook(cells=[new_markdown_cell("# A heading"), *map(new_code_cell, cells)])
    nbformat.write(notebook, folder / "small.ipynb")
    return [str(SCRIPT), str(folder / "small.ipynb"), "--output", str(folder / "build")]


def run_demo(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a notebook of these cells."""
    command = [sys.executable, *command_with(folder, *cells)]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": lighter_path()}
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)


def home_of(said: str) -> Path:
    """Where the pool of a demo was, that has run SAY_HOME. Other demos may run at the same time."""
    [home] = set(re.findall(r"/tmp/monarch-nb-demo-\w+", said))
    return Path(home)


@pytest.mark.quick
def test_it_shows_cells_and_takes_its_pool_down(tmp_path: Path) -> None:
    reserve = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4"
    hello, many_lines = "%%mesh\nprint('hello from', world_size)", "print(*range(100), sep='\\n')"
    demo = run_demo(tmp_path, reserve, hello, many_lines, SAY_HOME)
    # A client of another test that looks for its node may come to a port that was given to this kernel meanwhile.
    said = [line for line in demo.stderr.splitlines() if not line.startswith("Bad pipe message")]
    assert (demo.returncode, said) == (0, [])
    assert "[1/4] A heading · %load_ext monarch_nb" in demo.stdout
    assert "hello from 8" in demo.stdout
    assert "… 76 more lines in the executed copy" in demo.stdout
    assert "make lab" in demo.stdout
    executed = nbformat.read(tmp_path / "build" / "small.ipynb", as_version=4)
    assert [cell.get("execution_count") for cell in executed.cells[1:]] == [1, 2, 3, 4]
    assert not home_of(demo.stdout).exists()


def test_a_failing_cell_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here without its pool: that is taken down in the same way."""
    with tempfile.TemporaryDirectory(prefix="mnb-", dir="/tmp") as home:  # short: sockets of the kernel are in it
        monkeypatch.setenv("MONARCH_NB_HOME", home)
        monkeypatch.setattr(sys, "argv", command_with(tmp_path, "1 / 0", "print('not reached')"))
        script = runpy.run_path(str(SCRIPT), run_name="demo")
        monkeypatch.setitem(script["main"].__globals__, "local_pool", lambda _: nullcontext())
        assert script["main"]() == 1
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said
    assert "not reached" not in said
