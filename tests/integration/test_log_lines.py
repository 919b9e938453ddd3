"""The lines of live ranks by their numbers: a million of them at once, while they are written, and searched."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, eventually, kill, started
from leaks import processes_of
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.logs.lines import LogChange, LogLines, LogPart, LogWindow
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.presenting import serve_notebook
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import ReservationReleased
from monarch_nb.notebook.output.logs import shown_logs
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

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


def test_what_comes_while_a_run_goes_on(mesh: Mesh, gate: Gate) -> None:
    code = f"for i in range(3):\n    {gate.wait}\n    print(f'line {{i}}', end='\\n' if i < 2 else '')"
    run, _ = started(mesh, code)
    log = log_of(mesh)

    async def follow() -> None:
        lines = dict.fromkeys(range(8), 1)
        async with asyncio.timeout(TIMEOUT_S), aclosing(log.watch(run=run.number)) as changes:
            async for change in changes:
                lines |= {part.rank: part.stdout_lines for part in change.parts}
                assert not any(one.finished for one in change.runs)
                if change.complete:
                    break
            for expected in (16, 24, 32):
                gate.open(8)  # who is fast may pass twice
                while sum(lines.values()) < expected:
                    change = await anext(changes)
                    lines |= {part.rank: part.stdout_lines for part in change.parts}
                    assert sum(lines.values()) <= expected
            while not any(one.finished for one in change.runs):
                change = await anext(changes)

    call(follow())
    assert texts(log, LogWindow(run.number, 5, 1, 9)) == [["line 0", "line 1", "line 2"]]
    run.result()


def test_a_regex_that_never_ends_disturbs_nobody_and_can_be_stopped(mesh: Mesh, shared_home: Path) -> None:
    number = mesh.run("print('a' * 60 + 'b')").number
    log = log_of(mesh)
    windows = [LogWindow(number, rank, 0, 1) for rank in range(8)]

    def workers() -> list[str]:
        """The states of the processes that search."""
        return [each.state for each in processes_of(shared_home) if "search_worker" in each.command]

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


def test_a_node_that_comes_back_has_the_same_lines(spare_pool: list[Node]) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    number = dev.mesh.run("for i in range(1000): print(i, rank)").number
    log = log_of(dev.mesh)

    async def follow() -> None:
        lines: dict[int, int] = {}

        async def until(condition: Any) -> LogChange:
            change = LogChange()
            while not condition(change):
                change = await anext(changes)
                lines.update({part.rank: part.stdout_lines for part in change.parts})
            return change

        async with asyncio.timeout(TIMEOUT_S), aclosing(log.watch()) as changes:
            await until(lambda change: change.complete)
            assert lines == {0: 1000, 1: 1000}
            kill(spare_pool[1].pid or 0)
            assert (await until(lambda change: change.silent)).silent == ("node1",)
            await asyncio.to_thread(LocalProvisioner().up, 2, 4)
            await until(lambda change: not change.silent)

    call(follow())
    assert texts(log, LogWindow(number, 1, 500, 1)) == [["500 1"]]
    dev.release()


def test_a_log_ends_with_its_mesh(spare_pool: list[Node]) -> None:
    other = reserve("other", nodes=1, procs=1, preload=[])
    other.mesh.run("print(1)")
    log = log_of(other.mesh)

    async def follow(reservation: Reservation) -> None:
        async with asyncio.timeout(TIMEOUT_S), aclosing(log.watch()) as changes:
            await anext(changes)
            await asyncio.to_thread(reservation.release)
            with pytest.raises(ReservationReleased):
                [change async for change in changes]

    call(follow(other))
    with pytest.raises(ReservationReleased):
        call(log.read([LogWindow(1, 0, 0, 1)]))


def test_runs_of_two_notebooks_say_whose_they_are(
    spare_pool: list[Node], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = reserve("shared", nodes=1, procs=2, preload=[]).mesh
    leave = serve_notebook("/work/train.ipynb")
    try:
        mesh.run("print('one')", cell_number=3)
        assert [line for line in shown_logs(mesh, None, None) if "──" in line] == [
            "── run 1, cell [3] (print('one')) ──"
        ]
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
    assert next(shown_logs(mesh, None, None)).startswith("── run 1"), "nothing is left out"
    assert next(shown_logs(mesh, 1, None)).startswith("── run 3"), (
        "who asks for the last line knows that there are more"
    )
    with monkeypatch.context() as patch:
        patch.setattr("monarch_nb.notebook.output.logs.LOG_LINES", 1)
        newest = [*shown_logs(mesh, None, None)]
    assert newest[0] == "… 4 earlier lines on ranks 0-1 not shown: `%mesh logs -n 0` shows all"
    assert newest[-1] == "[0-1] two"
    headings = [line for line in shown_logs(mesh, None, None) if "──" in line]
    assert headings[0] == "── run 1, cell [3] of train.ipynb (print('one')) ──"
    assert headings[2] == "── run 3, cell [3] of eval.ipynb (print('two')) ──"
    told = [run for change in call(_all_changes(log_of(mesh), None)) for run in change.runs]
    assert {run.number: run.notebook for run in told}[3] == "/work/eval.ipynb"
    assert [info.notebook for info in mesh.past_runs()] == ["/work/train.ipynb"] * 2 + ["/work/eval.ipynb"]
