"""The lines of live ranks by their numbers: a million of them at once, while they are written, and searched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, eventually, started
from leaks import processes_of
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.logs.lines import LogChange, LogLines, LogPart, LogWindow
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.presenting import serve_notebook
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.notebook.output.logs import shown_logs
from monarch_nb.provision import Node

ENDLESS = r"(a+)+$"


def log_of(mesh: Mesh) -> LogLines:
    return LogLines(mesh.id, mesh.core.connections, mesh.core.ranks_per_node)


async def _all_changes(log: LogLines, run: int | None) -> list[LogChange]:
    return [change async for change in log.watch(run=run, follow=False)]


def counted(log: LogLines, run: int | None = None) -> dict[int, LogPart]:
    """How much each rank wrote in a run."""
    parts = {part.rank: part for change in call(_all_changes(log, run)) for part in change.parts}
    return dict(sorted(parts.items()))


def texts(log: LogLines, *windows: LogWindow, **options: Any) -> list[list[str]]:
    return [[line.text for line in lines] for lines in call(log.read(windows, **options))]


def test_both_streams_in_the_order_in_which_lines_began(mesh: Mesh) -> None:
    code = """
import sys
print("first", end="")
print("error", file=sys.stderr)
print(" goes on")
print("\\x1b[31mred\\x1b[0m")
"""
    number = mesh.run(code).number
    log = log_of(mesh)
    parts = counted(log, number)
    assert list(parts) == list(range(8))
    assert (parts[3].stdout_lines, parts[3].stderr_lines) == (2, 1)
    window = LogWindow(number, 3, 0, 9)
    assert texts(log, window) == [["first goes on", "error", "\x1b[31mred\x1b[0m"]]
    assert texts(log, window, streams="stderr") == [["error"]]
    own, others = call(log.digests([window, LogWindow(number, 6, 0, 9)]))
    assert own == others
    assert len(set(own)) == 3


def test_a_million_lines(mesh: Mesh) -> None:
    run = mesh.run("import sys\nsys.stdout.write(''.join(f'step {i} loss {i / 7:.3f}\\n' for i in range(125_000)))")
    log = log_of(mesh)
    parts = counted(log, run.number)
    assert {part.stdout_lines for part in parts.values()} == {125_000}

    lines = texts(log, *(LogWindow(run.number, rank, 99_000, 200) for rank in range(8)))
    assert lines[0] == lines[7]
    assert lines[0][::199] == ["step 99000 loss 14142.857", "step 99199 loss 14171.286"]

    everything = [LogWindow(run.number, rank, 0, 125_000) for rank in range(8)]
    digests = call(log.digests(everything))
    assert all(each == digests[0] and len(each) == 125_000 for each in digests)

    found = call(log.search("step 12345 ", everything))
    assert [list(each) for each in found] == [[12345]] * 8
    found = call(log.search(r"LOSS 0\.\d{2}0$", everything[:1], regex=True, ignore_case=True))
    assert list(found[0]) == [0]


def test_a_regex_that_never_ends_disturbs_nobody_and_can_be_stopped(mesh: Mesh, shared_home: Path) -> None:
    number = mesh.run("print('a' * 60 + 'b')").number
    log = log_of(mesh)
    windows = [LogWindow(number, rank, 0, 1) for rank in range(8)]

    def workers() -> list[str]:
        """The states of the processes that search."""
        return [each.state for each in processes_of(shared_home) if "monarch_nb.allocator.logs.search" in each.command]

    async def search() -> None:
        endless = asyncio.create_task(log.search(ENDLESS, windows, regex=True))
        async with asyncio.timeout(TIMEOUT_S):
            while workers() != ["R", "R"]:  # they may have been idle
                await asyncio.sleep(0.05)
        async with asyncio.timeout(TIMEOUT_S):
            assert len((await log.read(windows))[0]) == 1
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless

    call(search())
    eventually(lambda: not workers())
    assert [list(each) for each in call(log.search("ab", windows))] == [[0]] * 8


def test_runs_of_two_notebooks_say_whose_they_are(spare_pool: list[Node], gate: Gate) -> None:
    mesh = reserve("shared", nodes=1, procs=2, preload=[]).mesh
    leave = serve_notebook("/work/train.ipynb")
    try:
        mesh.run("print('one')", cell_number=3)
        [heading] = [line for line in shown_logs(mesh, None, None) if "──" in line]
        assert heading == "── run 1, cell [3] (print('one')) ──", "there is one notebook"
        waiting, _ = started(mesh, gate.wait, cell_number=4)
    finally:
        leave()
    leave = serve_notebook("/work/eval.ipynb")
    try:
        heard = Recorder()
        run = mesh.submit("print('two')", cell_number=3, listener=heard)
        heard.wait_for(lambda told: told.of(events.Notice))
        assert heard.of(events.Notice)[0].text.startswith("waits for: run 2, cell [4] of train.ipynb")
        gate.open(2)
        run.result()
        waiting.result()
    finally:
        leave()
    headings = [line for line in shown_logs(mesh, None, None) if "──" in line]
    assert headings[0] == "── run 1, cell [3] of train.ipynb (print('one')) ──"
    assert headings[2] == "── run 3, cell [3] of eval.ipynb (print('two')) ──"
    told = [run for change in call(_all_changes(log_of(mesh), None)) for run in change.runs]
    assert {run.number: run.notebook for run in told}[3] == "/work/eval.ipynb"
    assert [info.notebook for info in mesh.past_runs()] == ["/work/train.ipynb"] * 2 + ["/work/eval.ipynb"]
