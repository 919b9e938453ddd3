"""`%mesh diff` on live ranks: idle, computing, stopped, and in a notebook."""

from __future__ import annotations

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import TargetError, UsageError

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(600, 600)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 if rank != 6 else 0.2)
with torch.no_grad():
    if rank == 3:
        model.weight[17, 4] += 0.25
    if rank == 5:
        model.bias[2] = float("nan")
"""
SHARDS = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
grid = init_device_mesh("cpu", (2, 4))
spread = distribute_tensor(torch.arange(16.0), grid, [Replicate(), Shard(0)])
alone = distribute_tensor(torch.arange(16.0), grid, [Shard(0), Shard(0)])
if rank == 5:
    spread.to_local()[1] = -1
"""


def test_what_differs_is_named(mesh: Mesh) -> None:
    mesh.run(MODEL)
    report = mesh.diff("model")
    assert str(report) == (
        "0 of 2 tensors are equal on ranks 0-7\n"
        "  weight  [600, 600] float32 cpu: ranks 0-2,4-7 equal; rank 3 differs: greatest |difference| 0.25 at [17, 4]\n"
        "  bias    [600] float32 cpu: ranks 0-4,6-7 equal; rank 5 differs: only where one is nan or inf (1 nan)"
    )
    assert mesh.diff("optimizer").rows() == [("param_groups[0].lr", "ranks 0-5,7: 0.1; rank 6: 0.2")]
    assert [path for path, _ in mesh.diff("model, optimizer").rows()] == [
        *("model.weight", "model.bias", "optimizer.param_groups[0].lr")
    ]
    assert mesh.slice(hosts=0, procs=slice(0, 3)).diff("model").equal
    assert mesh.diff("rank // 4", over="procs").equal
    over_hosts = mesh.diff("rank // 4", over="hosts").differences
    assert [each.versions[1].ranks for each in over_hosts] == [(4,), (5,), (6,), (7,)]
    mesh.run("torch.manual_seed(rank // 7)")
    mesh.run("import numpy, random\nrandom.seed(rank); numpy.random.seed(0)")
    assert [path for path, _ in mesh.diff(rng=True).rows()] == ["python", "torch"]
    assert mesh.diff(env=True).equal
    mesh.run("import os\nif rank == 2: os.environ['NCCL_DEBUG'] = 'INFO'")
    report = mesh.diff(env=True)
    assert report.rows() == [("variables.NCCL_DEBUG", "rank 2: 'INFO'; ranks 0-1,3-7: not there")]
    assert not report.notes(), "NCCL reads it when a group is made"
    mesh.run("os.environ['TORCH_LOGS'] = 'recompiles'")
    [note] = mesh.diff(env=True).notes()
    said = "ranks 0-7: TORCH_LOGS changed too late to count, after Python or a module had read it"
    advice = "%mesh reserve dev --nodes 2 --procs 4 --env TORCH_LOGS=… --replace (variables of the ranks are lost)"
    assert note == f"{said}: {advice}"
    assert mesh.reservation.doctor().notes == (note,)


def test_the_value_is_evaluated_once_and_not_kept(mesh: Mesh) -> None:
    mesh.run(
        "import weakref\ncalls = 0\nclass Thing(list): pass\ndef make():\n    global calls, made\n    calls += 1\n"
        "    thing = Thing([rank, 2]); made = weakref.ref(thing)\n    return {'thing': thing}"
    )
    assert not mesh.diff("make()").equal
    assert mesh.run("calls, made() is None").values == [(1, True)] * 8


def test_ranks_that_stand_at_a_breakpoint(mesh: Mesh) -> None:
    run = mesh.submit("def step(x):\n    breakpoint()\nstep([rank // 6, 'a' * 400_000])", on_breakpoint="stop")
    debugger = Debugger(mesh)
    try:
        eventually(lambda: len(debugger.stops()) == 8)
        assert [difference.versions[1].ranks for difference in mesh.diff("x").differences] == [(6, 7)]
        with pytest.raises(UsageError, match=r"^ranks 0-7, at Run \d+:2: NameError: name 'y' is not defined$"):
            mesh.diff("y")
    finally:
        debugger.continue_all()
        assert run.wait(TIMEOUT_S)


def test_ranks_that_compute_are_refused_or_waited_for(mesh: Mesh) -> None:
    mesh.run("import threading\ngo = threading.Event()")
    run = mesh.slice(hosts=0).submit("go.wait(60)")
    try:
        eventually(lambda: run.number and sum(info.state == "running" for info in mesh.status()) == 4)
        with pytest.raises(UsageError, match=rf"ranks 0-3 compute \(run {run.number}\): --when-idle waits for the end"):
            mesh.diff("rank")
        assert mesh.slice(hosts=1).diff("world_size").equal
    finally:
        run.interrupt()
        run.wait(TIMEOUT_S)
    mesh.submit("late = 1")
    assert mesh.diff("late", when_idle=True).equal


@pytest.mark.slow
def test_shards_are_compared_with_the_same_shard(fresh_mesh: Mesh) -> None:
    fresh_mesh.run(f"import torch\n{SHARDS}")
    report = fresh_mesh.diff("{'spread': spread, 'alone': alone}")
    (difference,) = report.differences
    assert (difference.path, [version.ranks for version in difference.versions]) == ("spread", [(1,), (5,)])
    assert difference.versions[1].distance == "greatest |difference| 6 at [1]"
    assert "1 tensor in shards" in report.notes()[0]
    fresh_mesh.run("parallel = {'meshes': init_device_mesh('cpu', (2, 4), mesh_dim_names=('dp', 'tp'))}; x = rank % 4")
    assert fresh_mesh.diff("x", over="dp").equal
    with pytest.raises(TargetError, match="no dimension 'pp'"):
        fresh_mesh.diff("x", over="pp")


def test_in_a_notebook(mesh: Mesh, attached: Kernel) -> None:
    attached.run("%%mesh\nlr = 0.1 if rank < 3 else 0.2")
    shown = attached.run("%mesh diff {'lr': lr, 'n': 1}")
    assert shown.startswith("1 of 2 values are equal on ranks 0-7")
    assert "lr    ranks 3-7: 0.2; ranks 0-2: 0.1" in shown
    assert attached.run("%mesh diff lr -t 0-2").strip() == "the value is equal on ranks 0-2"
    assert "give one thing to compare" in attached.run("%mesh diff")
