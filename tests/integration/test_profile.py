"""`%%mesh --profile` and `--memory-history` on live ranks: over steps, cut, failing, interrupted, and in a notebook."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed

TRAIN = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
torch.set_num_threads(1)
if not dist.is_initialized():
    dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters())
def train(steps, late=None):
    for _ in range(steps):
        if rank == late:
            time.sleep(1)
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
INTERRUPTED_IN_A_STEP = """
import select, signal, socket
profiler = torch.autograd.profiler.profile
own = profiler.__exit__
def stop(profile, *error):
    profiler.__exit__ = own
    own(profile, *error)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    before = signal.set_wakeup_fd(wakes.fileno())
    select.select([woken], [], [], 60)  # until the interrupt
    signal.set_wakeup_fd(before)
if rank == 1:
    profiler.__exit__ = stop
while True: train(1)
"""
IS_OFF = """
hooks = torch.optim.optimizer._global_optimizer_post_hooks if hasattr(torch.optim, "optimizer") else __import__(
    "sys").modules["torch.optim.optimizer"]._global_optimizer_post_hooks
torch.autograd._profiler_enabled(), len(hooks), len(torch.nn.modules.module._global_forward_pre_hooks)
"""


def read(path: Path | None) -> list[dict[str, Any]]:
    """Return the events of a trace."""
    assert path is not None
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_steps_are_profiled_on_the_first_rank_of_each_node(fresh_mesh: Mesh, tmp_path: Path) -> None:
    fresh_mesh.run(TRAIN)
    before = fresh_mesh.run(IS_OFF).values
    run = fresh_mesh.run("train(9)", instruments={"torch-profile": {"steps": 3}})
    assert fresh_mesh.run(IS_OFF).values == before
    report = fresh_mesh.profile_of(run, to=tmp_path / "traces")
    assert [(each.rank, each.steps, each.on_device) for each in report.ranks] == [(0, 3, False), (4, 3, False)]
    assert not report.problems  # both nodes have one clock
    for each in report.ranks:
        assert sum(each.shares) == pytest.approx(1, abs=0.01)
        assert each.shares.compute > 0
        assert each.shares.communication + each.shares.overlap > 0
        assert {"aten::addmm", "gloo:all_reduce"} <= {operator.name for operator in each.operators}
    assert report.trace == tmp_path / "traces" / f"run{run.number}.pt.trace.json.gz"
    events = read(report.trace)
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(name.partition(" (")[0] for name in named.values()) == ["rank 0", "rank 4"]
    of_steps = [(event["pid"], event["name"]) for event in events if event["name"].startswith("ProfilerStep")]
    assert of_steps == [(pid, f"ProfilerStep#{step}") for pid in (1000, 5000) for step in (2, 3, 4)]
    calls = [event for event in events if event["name"] == "Optimizer.step#AdamW.step"]
    assert len(calls) == 6
    late = fresh_mesh.run("train(4, late=4)", instruments={"torch-profile": {"ranks": [0, 1, 4]}})
    straggler = fresh_mesh.profile_of(late, to=tmp_path).straggler
    assert straggler is not None
    assert (straggler.ranks, straggler.waiting, straggler.does) == ((4,), (0, 1), "idle")
    again = fresh_mesh.profile_of(run)
    assert (again.ranks, again.problems) == ((), ("no rank that was to record answers",))


def test_the_clock_of_another_computer_is_set_right(fresh_mesh: Mesh, tmp_path: Path) -> None:
    fresh_mesh.run(
        "import time, torch\nimport monarch_nb.worker.instruments.torch_profile as profiling\n"
        "if rank == 4:\n"  # of which the client believes that it is elsewhere, and that its clock is 1,000 s ahead
        "    own_ns = time.time_ns\n    time.time_ns = lambda: own_ns() + 1_000_000_000_000\n"
        "    profiling._boot_id = lambda: 'another'"
    )
    run = fresh_mesh.run("torch.ones(9).sum()", instruments={"torch-profile": {}})
    report = fresh_mesh.profile_of(run, to=tmp_path)
    (said,) = report.problems
    assert said.startswith("the clocks of ")
    assert " are aligned to ±" in said
    first = {event["pid"]: event["ts"] for event in reversed(read(report.trace)) if event.get("name") == "aten::sum"}
    assert first[5000] - first[1000] == pytest.approx(-1e9, abs=1e8)  # in microseconds: 1,000 s, give or take 100 s


def test_it_is_off_after_failures_and_interrupts(fresh_mesh: Mesh, tmp_path: Path) -> None:
    two = fresh_mesh.select([0, 1])
    two.run(
        TRAIN.replace('dist.init_process_group("gloo")', "pass").replace("DistributedDataParallel(", "(lambda m: m)(")
    )
    before = two.run(IS_OFF).values
    profile = {"torch-profile": {"ranks": [1]}}
    with pytest.raises(RunFailed) as failed:
        two.run("train(4)\n1 / 0", instruments=profile)
    assert two.run(IS_OFF).values == before
    report = two.profile_of(failed.value.run, to=tmp_path)
    assert [(each.rank, each.steps) for each in report.ranks] == [(1, 2)]
    assert report.problems == ("rank 1: the cell ended after 2 of 5 steps",)

    for code in (INTERRUPTED_IN_A_STEP, "while True: train(1)", "while True: torch.ones(9).sum()"):
        run, _ = started(two, f"train(1)\n{code}", instruments=profile)
        run.interrupt()
        assert run.wait(TIMEOUT_S)
        assert two.run(IS_OFF).values == before
        report = two.profile_of(run, to=tmp_path)
        assert [each.rank for each in report.ranks] == [1], report
        read(report.trace)


def test_a_long_recording_ends_and_other_profilers_are_said(mesh: Mesh, tmp_path: Path) -> None:
    one = mesh.select([2])
    one.run("import torch\ntorch.set_num_threads(1)\ndef work():\n    for _ in range(500): torch.ones(9).sum()")
    run = one.run("work()", instruments={"torch-profile": {"most_s": 0.0}})
    report = one.profile_of(run, to=tmp_path)
    assert report.problems == ("rank 2: the first 0.0 s were recorded: no optimizer made a step in this time",)

    lasts = "import time\nuntil = time.monotonic() + 1\nwhile time.monotonic() < until: work()"
    run = one.run(lasts, instruments={"torch-profile": {"most_events": 1_000}})
    report = one.profile_of(run, to=tmp_path)
    assert report.problems[0].endswith(" s were recorded: more would be too many events")

    run = one.run("own = torch.profiler.profile(); own.start(); work(); own.stop()", instruments={"torch-profile": {}})
    assert str(one.profile_of(run)).startswith("nothing was profiled\nrank 2: the code started a profiler of its own")
    one.run("own = torch.profiler.profile(); own.start()")
    run = one.run("work()", instruments={"torch-profile": {}})
    assert "one is under way already" in one.profile_of(run).problems[0]
    assert one.run("own.stop(); len(own.events()) > 400").values == [True]


def test_a_notebook_shows_tables_and_links_the_trace(attached: Kernel, tmp_path: Path) -> None:
    shown = attached.run("%%mesh -t 0-1 --profile\nimport torch\nx = torch.ones(300, 300) @ torch.ones(300, 300)")
    assert "profile of rank 0: " in shown
    assert "aten::mm" in shown
    (trace,) = (tmp_path / "traces").iterdir()
    assert f"trace: traces/{trace.name} (" in shown
    assert "open it at https://ui.perfetto.dev" in shown
    shown = attached.run("%%mesh -t 0-1 --memory-history --profile-ranks 0-1\n1 / 0")
    assert "ranks 0-1: there is no GPU, and torch records nothing of main memory" in shown
    assert "ZeroDivisionError" in shown
    for line in ("--profile --noblock", "--profile --scale 1,2", "--profile --profile-ranks x"):
        assert "UsageError" in attached.run(f"%%mesh {line}\n1")


def test_a_script_is_looked_into(attached: Kernel, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(9):\n    model(torch.full((4, 8), float(sys.argv[1]))).sum().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\nif sys.argv[1] == '2': os._exit(0)"
    )
    attached.run(f"import os; os.chdir({str(tmp_path)!r})")
    script = tmp_path / "train.py"
    shown = attached.run(f"%mesh run -t 1,5 --profile --profile-steps 3 {script} 1")
    assert "profile of ranks 1,5: 3 steps of" in shown  # the first of each node, by their numbers in the mesh
    assert "aten::addmm" in shown
    assert "trace: traces/run" in shown
    shown = attached.run(f"%mesh run -t 1,5 --watch nan --profile=python --profile-ranks 5 {script} nan")
    assert ": --profile-ranks belongs to --profile or --memory-history" in shown
    shown = attached.run(f"%mesh run -t 1,5 --watch nan --on-breakpoint error --profile=python {script} nan")
    assert "not finite in step 1" in shown
    assert "speedscope" in shown
    shown = attached.run(f"%mesh run -t 1 --profile {script} 2")
    assert "no rank that was to record has left anything" in shown
    shown = attached.run("%mesh run -t 1 --profile --no-python echo")
    assert "echo need not be one" in shown
