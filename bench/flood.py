"""A flood of output: what it costs the ranks, the notebook and the log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from bench.harness import PROGRAMS, RANKS, Bench, Outcome, Row, median, program
from monarch_nb.client.meshes.mesh import Mesh

LINES = 200_000
_TIMEOUT_S = 300
_PROGRAM = "print_lines.py"
_LINE_BUFFERED = f"""
import sys
sys.stdout.reconfigure(line_buffering=True)
exec(open({str(PROGRAMS / _PROGRAM)!r}).read())
print(elapsed_s, file=sys.stderr)
"""
_LINE = re.compile(r"^line (\d+) of process \d+: loss [\d.]+$", re.MULTILINE)
_DISPLAYS = ("display_data", "update_display_data", "stream", "execute_result")


class _Notebook(NotebookClient):
    """A notebook in a real kernel of this python; notes when the kernel sends something to be shown."""

    def __init__(self, directory: Path) -> None:
        resources = {"metadata": {"path": str(directory)}}
        super().__init__(nbformat.v4.new_notebook(), km=KernelManager(), resources=resources, timeout=_TIMEOUT_S)
        self.shown_at_s: list[float] = []

    def process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if message["msg_type"] in _DISPLAYS:
            self.shown_at_s.append(time.monotonic())
        return super().process_message(message, cell, cell_index)


def measure(bench: Bench) -> Outcome:
    pool = bench.warm_pool(1, RANKS)
    slowdowns, rates, sizes = [], [], []
    notebook = _Notebook(bench.directory)
    with bench.reserved() as reservation, notebook.setup_kernel(stderr=subprocess.DEVNULL):
        _execute(notebook, f"%load_ext monarch_nb\n%mesh reserve {reservation.name} --procs {RANKS} --pool {pool}")
        for _ in range(bench.repeats(5, 1)):
            plain_s = _plain(bench.directory)
            notebook.shown_at_s = []
            cell = _execute(notebook, f"%%mesh\n{program(_PROGRAM)}")
            ours_s = reservation.mesh.pull("elapsed_s")
            slowdowns.append(max(ours_s) / max(plain_s))
            rates.append(most_in_a_second(notebook.shown_at_s))
            sizes.append(len(json.dumps(cell.outputs, ensure_ascii=False).encode()))
            bench.say(f"flood: ranks {max(ours_s):.2f} s, plain processes {max(plain_s):.2f} s")
        complete = _logs_are_complete(reservation.mesh, len(sizes))
    slowdown = median(slowdowns)
    return Outcome(
        f"{max(rates)} updates a second, {max(sizes) / 1000:.0f} kB stored, "
        f"{'every line in the logs' if complete else 'LINES MISSING'}",
        slowdown <= 1.5 and max(rates) <= 15 and max(sizes) < 200_000 and complete,
        "plain redirect",
        f"slowest rank {slowdown:.2f} times the slowest process",
    )


def _plain(directory: Path) -> list[float]:
    """Return how long each of 8 plain processes needs that write the same into a file, line-buffered."""
    with ExitStack() as stack:
        processes = []
        for rank in range(RANKS):
            file = stack.enter_context((directory / f"plain-{rank}").open("wb"))
            command = [sys.executable, "-c", _LINE_BUFFERED]
            processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True))
        return [float(process.communicate()[1]) for process in processes]


def _execute(notebook: _Notebook, code: str) -> Any:
    cell = nbformat.v4.new_code_cell(code)
    notebook.nb.cells.append(cell)
    return notebook.execute_cell(cell, len(notebook.nb.cells) - 1)


def most_in_a_second(times_s: list[float]) -> int:
    """Return the most of these times that lie within one second."""
    return max((sum(start <= at < start + 1 for at in times_s) for start in times_s), default=0)


def _logs_are_complete(mesh: Mesh, floods: int) -> bool:
    """Return whether each rank's log has every line of every flood, in order."""
    numbers: dict[int, list[int]] = {rank: [] for rank in mesh.ranks}
    for record in mesh.logs():
        numbers[record.rank] += map(int, _LINE.findall(record.text))
    return all(found == [*range(LINES)] * floods for found in numbers.values())


ROWS = [
    Row(
        "flood",
        f"{RANKS} ranks printing 200,000 lines each",
        "no rank slower than 1.5 times a plain redirect to a file; at most 15 display updates a second; the cell's "
        "stored output under 200 kB; every line in the logs, in order",
        "nbclient runs a `%%mesh` cell in a real kernel, as a notebook would. The cell alternates with 8 plain "
        "processes that run the same program (`bench/programs/print_lines.py`) line-buffered into files. The "
        "slowdown is the slowest rank's time divided by the slowest process's, median of 5 rounds. Both share this "
        "machine's cores; our ranks also share them with the allocator and the kernel. Updates are the most messages "
        "to be shown in any one second. Stored is the size of the cell's outputs as JSON. Then the bench reads "
        "`mesh.logs()` and looks for every line.",
        measure,
    ),
]
