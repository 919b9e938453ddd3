"""What finds out when a training went wrong, on live ranks: `--watch nan`."""

from __future__ import annotations

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed

DBG = "monarch_dbg> "
HOOKS = """
import sys, torch
optimizers, modules = sys.modules["torch.optim.optimizer"], torch.nn.modules.module
[len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks),
 len(modules._global_forward_pre_hooks), len(modules._global_forward_hooks), torch.autograd.backward.__module__]
"""
MODEL = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Root(torch.nn.Module):
    def forward(self, x, *, shift):
        return torch.sqrt(x + shift)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
        self.root, self.head = Root(), torch.nn.Linear(4, 1)

    def forward(self, x, *, shift=99.0):
        return self.head(self.root(self.layers(x), shift=shift))

def train(net, steps, shift_of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        net(torch.randn(8, 4), shift=shift_of(step)).mean().backward()
        optimizer.step()

torch.manual_seed(rank)
net = Net()
"""


def test_all_ranks_of_a_data_parallel_training_stop(fresh_mesh: Mesh) -> None:
    """One rank's batch has a nan; the sum of the gradients has it everywhere. Only that rank can tell the module."""
    mesh = fresh_mesh
    mesh.run(f"{MODEL}\ndist.init_process_group()\nspread = DistributedDataParallel(net)")
    before = mesh.run(HOOKS).values
    code = "train(spread, 9, lambda step: -99.0 if (rank, step) == (3, 7) else 99.0)"
    with pytest.raises(RunFailed) as raised:
        mesh.run(code, instruments={"watch": {}}, on_breakpoint="go-on")
    told = {failure.rank: failure.message for failure in raised.value.failures.values()}
    gradients = "the gradients of 5 of 6 parameters are not finite in step 7: layers.0.weight, layers.0.bias, "
    assert sorted(told) == list(range(8))
    assert all(message.startswith(gradients) for message in told.values()), told
    assert told[3].endswith("; the first output that is not finite is that of root (Root)")
    elsewhere = "; the loss and all outputs of the modules are finite here: it arose in backward or on another rank"
    assert all(told[rank].endswith(elsewhere) for rank in range(8) if rank != 3), told
    assert "optimizer.step()" in raised.value.failures[3].traceback
    assert mesh.run(HOOKS).values == before, "all is off after a failure"

    with pytest.raises(RunFailed) as raised:  # one rank alone knows of its loss; the others wait for it in backward
        mesh.run(code.replace("7)", "2)"), instruments={"watch": {"what": ["loss"]}}, on_breakpoint="go-on")
    names = {rank: failure.name for rank, failure in raised.value.failures.items()}
    assert names.pop(3) == "NotFinite"
    assert sorted(names) == [rank for rank in range(8) if rank != 3]
    assert set(names.values()) <= {"KeyboardInterrupt", "ProcessGroupAborted"}, "the latter lost a peer first"
    assert "rank 3: NotFinite: the loss of step 2 is nan" in str(raised.value)
    assert mesh.run(HOOKS).values == before


def test_a_rank_alone_stops_in_the_debugger_at_the_users_line(mesh: Mesh) -> None:
    mesh.run(MODEL)
    code = "state = torch.get_rng_state()\ntrain(net, 5, lambda step: -99.0 if (rank, step) == (2, 4) else 99.0)"
    run = mesh.submit(code, instruments={"watch": {"what": ["grad", "loss"]}}, on_breakpoint="stop")
    debugger = Debugger(mesh)
    try:
        eventually(lambda: len(debugger.stops()) == 1)
        (stop,) = debugger.stops()
        assert (stop.rank, stop.line) == (2, "net(torch.randn(8, 4), shift=shift_of(step)).mean().backward()")
        said = debugger.cast("2", "p step, net.layers[2].num_batches_tracked.item()")
        assert said == {2: "(4, 4)\n"}, "the batch that was run again has left no trace"
    finally:
        debugger.continue_all()
        assert run.wait(TIMEOUT_S)
    found = mesh.found_in(run, "watch")
    assert found[0] == {"steps": 5, "backward_passes": 5, "looked_at": 5, "what": ["grad", "loss"], "found": ""}
    assert found[2]["found"] == "the loss of step 4 is nan; the first output that is not finite is that of root (Root)"


def test_in_a_notebook(mesh: Mesh, attached: Kernel) -> None:
    """It is off after an interrupt, too: the last cell is not watched."""
    mesh.run(MODEL)
    before = mesh.run(HOOKS).values
    failed = attached.run("%%mesh -t 0-3 --watch nan --on-breakpoint error\ntrain(net, 3, lambda step: -99.0)")
    assert "NotFinite" in failed
    assert "not finite in step 1" in failed
    fine = attached.run("%%mesh --watch nan=loss,grad,param\ntrain(net, 3 + rank // 4, lambda step: 99.0)")
    assert fine.splitlines()[-2:] == [
        "--watch: 3 steps on ranks 0-3, all finite",
        "--watch: 4 steps on ranks 4-7, all finite",
    ]
    assert "--watch looks at one run, and --scale makes several" in attached.run("%%mesh --watch nan --scale 1,2\n1")
    assert "--watch shows what it found when the cell ends" in attached.run("%%mesh --watch nan --noblock\n1")
    cell = attached.start(
        "%%mesh -t 1-2 --watch nan\ntrain(net, 3, lambda step: -99.0 if (rank, step) == (2, 3) else 99.0)"
    )
    assert "| cell       |    2 |" in attached.asked(cell, DBG)
    attached.answer("p step, steps")
    assert "(3, 3)" in attached.asked(cell, DBG)
    attached.answer("continue")
    shown = attached.wait(cell)
    assert "not finite in step 3" in shown
    assert "rank 2 found what is not finite" in shown.splitlines()[-1]
    endless = "%%mesh --watch nan=loss,param\nprint('on')\nwhile True: train(net, 1, lambda step: 99.0)"
    cell = attached.start(endless)
    attached.wait(cell, "on")
    attached.interrupt()
    attached.wait(cell)
    assert mesh.run(HOOKS).values == before
