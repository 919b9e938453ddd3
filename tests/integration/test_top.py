"""Where ranks are and who is waited for, and flame graphs of their stacks, on live ranks and in a notebook."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, Gate, Recorder, eventually, started
from monarch_nb.cli.main import main
from monarch_nb.client.instruments.top_table import TopTable
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed, UsageError
from monarch_nb.panel.requests import Panel

LATE = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        if rank == 3:
            time.sleep(0.05)
        return torch.ones(4)
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], 1e-6)
for batch in torch.utils.data.DataLoader(Data(), batch_size=2):
    weight.grad = batch.sum(0)
    dist.all_reduce(weight.grad)
    optimizer.step()
"""
LOOKERS = "import threading\nsum('looker' in each.name for each in threading.enumerate())"
BUSY = "import time\ndef busy():\n    end = time.monotonic() + 1\n    while time.monotonic() < end:\n        {}\nbusy()"


def seen(mesh: Mesh, holds: Callable[[TopTable], object]) -> TopTable:
    """Look at the mesh until something holds."""
    tables: list[TopTable] = []

    def look() -> object:
        tables.append(mesh.top(0.2))
        return holds(tables[-1])

    eventually(look)
    return tables[-1]


def test_the_rank_that_the_others_wait_for_is_named_with_its_line(fresh_mesh: Mesh) -> None:
    run, _ = started(fresh_mesh, LATE)
    try:

        def is_clear(table: TopTable) -> object:  # on a busy machine a short look may miss a rank that waits
            late = table.straggler
            told = late and (late.ranks, late.kind, late.collective, late.waiting)
            is_said = told == ((3,), "loader", "all_reduce", (0, 1, 2, 4, 5, 6, 7))
            return is_said and all(each.steps_per_s for each in table.ranks)

        table = seen(fresh_mesh, is_clear)
        late = table.straggler
        assert late is not None
        # Below `if rank == 3:`, as the rank numbers lines, behind the line of `started`.
        assert re.fullmatch(rf"Run {run.number}:12", late.line), late.line
        assert [row.is_late for row in table.rows] == [rank == 3 for rank in range(8)]
        assert all(each.memory_bytes for each in table.ranks)

        told = Panel().handle("top", {"mesh": fresh_mesh.id, "ranks": "2-3"}).result(TIMEOUT_S)["result"]
        assert [(row["ranks"], row["node"]) for row in told["rows"]] == [("2", "node0"), ("3", "node0")]
        assert {part["kind"] for part in told["rows"][0]["parts"]} >= {"collective"}
    finally:
        run.interrupt()
        assert run.wait(TIMEOUT_S)
    assert seen(fresh_mesh, lambda table: not table.straggler).straggler is None


def test_scripts_are_looked_at_and_a_terminal_shows_them(
    mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time\nprint('\\x02under way', flush=True)\ntime.sleep(60)\n")
    recorder = Recorder()
    run = mesh.select([0, 1]).submit_script(str(script), listener=recorder)
    try:
        recorder.wait_for_text("\x02under way", 2)
        table = seen(mesh.select([0, 1]), lambda table: all(each.line == "slow.py:3" for each in table.ranks))
        assert {each.share("waiting") > 0.5 for each in table.ranks} == {True}
        assert main(["top", "dev", "-t", "0-2"]) == 0, "nobody could press Ctrl-C in a pipe: it looks once"
        shown = capsys.readouterr().out
        assert shown.splitlines()[0] == "no rank is slow"
        assert [line.split()[0] for line in shown.splitlines()[2:]] == ["0", "1", "2"]
        assert "slow.py:3" in shown
    finally:
        run.interrupt()
        assert run.wait(TIMEOUT_S)


def test_nobody_watches_nobody_looks(mesh: Mesh) -> None:
    idle = seen(mesh, lambda table: all(each.share("idle") == 1 for each in table.ranks))
    assert idle.sentence == "nothing runs on these ranks"
    eventually(lambda: mesh.top(0) and mesh.run(LOOKERS).values == [1] * 8)
    eventually(lambda: mesh.run(LOOKERS).values == [0] * 8)
    assert mesh.run("import sys\nround(sys.getswitchinterval(), 4)").values == [0.005] * 8


def test_stacks_of_ranks_that_differ(mesh: Mesh) -> None:
    own = "def fast():\n    for _ in range(999): pass\ndef slow():\n    for _ in range(999): pass\n"
    run = mesh.run(own + BUSY.format("slow() if rank == 6 else fast()"), instruments=PROFILED)
    flames = mesh.flames_of(run)
    assert flames.missing == ()
    assert [group.ranks for group in flames.groups] == [(0, 1, 2, 3, 4, 5, 7), (6,)]
    hottest = [max(lines, key=lambda line: lines[line]) for group in flames.groups for lines in [group.lines()]]
    assert [str(line) for line in hottest] == [f"Run {run.number}:2 fast", f"Run {run.number}:4 slow"]
    assert all(group.root.total_s > 0 for group in flames.groups)
    again = mesh.flames_of(run)
    assert (again.groups, again.missing) == ((), tuple(range(8)))
    assert mesh.run("import threading\nsum('profile' in each.name for each in threading.enumerate())").values == [0] * 8


def test_a_look_at_stacks_wakes_no_c_code_that_waits_with_the_interpreter_held(mesh: Mesh, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        f"import ctypes, os, struct\nends = os.open({str(fifo)!r}, os.O_RDWR)\n"
        "wanted = ctypes.create_string_buffer(struct.pack('ihh', ends, 1, 0))\n"
        "def stuck():\n    return ctypes.PyDLL(None).poll(wanted, 1, -1)  # a handler of a signal ends it with -1\n"
        "stuck()"
    )
    first = mesh.select([0])
    run = first.submit(code)
    eventually(lambda: 0 not in first.where())
    [(_, stack)] = first.stacks().groups
    assert "in stuck" in stack
    assert "monarch_nb-control" not in stack
    assert "control/thread.py" not in stack
    fifo.write_text("goes on")
    assert run.result(TIMEOUT_S) == [1]


PROFILED: dict[str, dict[str, Any]] = {"python-profile": {}}


def test_a_run_that_fails_goes_on_or_loses_a_rank_has_a_profile_of_what_there_was(mesh: Mesh, gate: Gate) -> None:
    with pytest.raises(RunFailed) as caught:
        mesh.run(BUSY.format("rank") + "\n1 / 0", instruments=PROFILED)
    assert caught.value.run is not None
    assert len(mesh.flames_of(caught.value.run).groups) > 0
    run, _ = started(mesh, f"{gate.wait}\nimport os\nif rank == 2: os._exit(3)", instruments=PROFILED)
    with pytest.raises(UsageError, match=rf"run {run.number} goes on: run.result\(\) waits for its end"):
        mesh.flames_of(run)
    gate.open(8)
    assert run.wait(TIMEOUT_S)
    found = mesh.flames_of(run)
    assert (found.missing, found.dead) == ((2,), (2,))


def test_in_a_notebook(mesh: Mesh, attached: Kernel, gate: Gate, tmp_path: Path) -> None:
    assert "nothing runs on these ranks" in attached.run("%mesh top --once -t 0-1")
    assert "nothing runs on these ranks" in attached.run("%mesh top"), "it ends: no cell of this kernel can begin"
    attached.run(f"%%mesh --noblock\n{gate.wait}")
    live = attached.start("%mesh top")
    assert "waits" in attached.wait(live, "Cell In[")
    attached.interrupt()
    shown = attached.wait(live)
    assert "KeyboardInterrupt" not in shown
    assert shown.count("steps/s") <= 1
    assert "no rank is slow" in attached.run("%mesh top --for 3s")
    assert "say one of --once and --for" in attached.run("%mesh top --once --for 3s")
    gate.open(8)
    attached.run("%%mesh\nrank")

    text = attached.run(f"%%mesh --profile=python\n{BUSY.format('rank')}")
    assert "stacks: traces/run" in text
    assert re.search(r"Cell In\[\d+\]:4 busy", text)
    assert list((tmp_path / "traces").glob("*.speedscope.json"))
    assert "leave --noblock out" in attached.run("%%mesh --noblock --profile=python\nrank")
