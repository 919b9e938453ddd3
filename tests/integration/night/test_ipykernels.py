"""Output lands in the cell that caused it, under ipykernel 6, too: all other tests have the one that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from integration.kernels import Kernel
from integration.live import Gate
from integration.test_kernel import (  # noqa: F401 (they run here, too)
    in_a_thread,
    test_output_lands_in_the_cell_that_caused_it,
    test_output_of_a_thread_lands_in_the_cell_that_runs,
)

ANOTHER_IPYKERNEL = Path(__file__).parents[3] / "build" / "ipykernel6"
OPEN_MESH = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"


@pytest.fixture(scope="session")
def ipykernel6() -> Path:
    """A folder with ipykernel 6, to be put before everything else; installed once and kept under build/."""
    if not ANOTHER_IPYKERNEL.exists():
        unfinished = ANOTHER_IPYKERNEL.with_name(f"ipykernel6-{os.getpid()}")
        # All else that it needs is what ipykernel 7 needs, and is installed.
        packages = ["ipykernel<7", "nest-asyncio"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished)]
        subprocess.run([*command, *packages], check=True, timeout=100)
        try:
            unfinished.rename(ANOTHER_IPYKERNEL)
        except OSError:  # another process of these tests was faster
            shutil.rmtree(unfinished)
    return ANOTHER_IPYKERNEL


@pytest.fixture(autouse=True)
def has_ipykernel6(ipykernel6: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a test starts."""
    paths = [str(ipykernel6), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    code = "import ipykernel; print(ipykernel.version_info[0])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(asked.stdout) == 6


@pytest.fixture
def kernel(open_kernel: Callable[[], Kernel]) -> Kernel:
    """It holds "dev": 2 nodes × 2 procs."""
    opened = open_kernel()
    opened.run(OPEN_MESH)
    return opened


@pytest.mark.usefixtures("shared_pool")
def test_nbclient_stores_output_in_its_cell(make_gate: Callable[[], Gate]) -> None:
    """nbclient reads what belongs to the cell that runs, so a later cell waits until the output must have come."""
    gate, thread = make_gate(), make_gate()
    environment = {**os.environ, "JPY_SESSION_NAME": "another.ipynb"}
    pass_by = "open({!r}, 'wb').write(b'xxxx')"
    sources = [
        OPEN_MESH.replace("dev", "other"),
        f"%%mesh --noblock -o run\n{gate.wait}\nprint('behind', rank)",
        f"{pass_by.format(str(gate.path))}\nrun.result(60)\nprint('waited')",
        f"%%mesh\n{in_a_thread(thread)}\nprint('started')",
        f"{pass_by.format(str(thread.path))}",
        "%%mesh\nprint('blocking')",
        "%mesh release",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute(env=environment)
    shown = [[_text(output) for output in cell.outputs] for cell in notebook.cells]
    assert len(shown[1]) == 1
    assert "[3] behind 3" in shown[1][0]
    assert shown[2] == ["waited\n"]
    assert shown[3][0].startswith("[0-3] started")
    assert shown[5] == ["[0-3] blocking"]


def _text(output: nbformat.NotebookNode) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue", "")
