"""Saves that ranks make by themselves: while cells and scripts train, and without a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, Recorder, client, eventually, leave
from monarch_nb.actor import Actor, endpoint
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import attach
from monarch_nb.errors import SaveError, UsageError
from monarch_nb.provision import Node
from monarch_nb.worker.saving.manifest import Manifest

PREPARE = """
import torch, os
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
"""
TRAIN = """
while True:
    model(torch.rand(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(float(model.module.weight.detach().sum()))
    stop = torch.tensor(float(os.path.exists({stop!r})))
    dist.all_reduce(stop)
    if stop:
        break
"""
SCRIPT = '''
"""The loop of a tutorial: everything is in functions."""
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net, optim, scheduler):
        self.net, self.optim, self.scheduler = DDP(net), optim, scheduler

    def train(self, stop):
        while True:
            self.optim.zero_grad()
            self.net(torch.rand(8, 4)).square().mean().backward()
            self.optim.step()
            self.scheduler.step()
            done = torch.tensor(float(os.path.exists(stop)))
            dist.all_reduce(done)
            if done:
                return

def main(stop):
    dist.init_process_group("gloo")
    net = torch.nn.Linear(4, 1)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    trainer = Trainer(net, optim, torch.optim.lr_scheduler.StepLR(optim, 100))
    trainer.train(stop)
    dist.destroy_process_group()

if __name__ == "__main__":
    main(sys.argv[1])
'''


@pytest.fixture
def four(hold: Callable[..., Reservation]) -> Reservation:
    """2 nodes × 2 procs of a test's own."""
    return hold(nodes=2, procs=2, time="1h")


def saves(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith(".")) if directory.is_dir() else []


def test_a_cell_that_trains_is_saved_and_loaded(four: Reservation, tmp_path: Path) -> None:
    mesh: Mesh = four.mesh
    mesh.run(PREPARE)
    run = mesh.submit(TRAIN.format(stop=str(tmp_path / "stop")))
    first = mesh.autosave(tmp_path / "first", every=60)  # while it trains
    assert first.when == "every 1 min"
    mesh.autosave(tmp_path / "saves", ["model", "optimizer", "history"], every="1s", background=True, keep=2)
    eventually(lambda: len(saves(tmp_path / "saves")) == 2 and saves(tmp_path / "saves")[-1].name >= "0003")
    # On a busy machine a rank may have come beyond the announced step: the next save looks further ahead.
    status = eventually(lambda: (found := mesh.autosave_status()) and not found.problem and found)
    assert status
    assert status.directory == str(tmp_path / "saves")
    assert "last saved" in str(status)
    mesh.autosave_off()
    assert mesh.autosave_status() is None
    (tmp_path / "stop").touch()
    run.result()
    assert not saves(tmp_path / "first")
    whole = mesh.pull("history")
    path = saves(tmp_path / "saves")[-1]
    mesh.run("history = []")
    mesh.load(path)
    steps = mesh.pull("(len(history), float(model.module.weight.detach().sum()))")
    assert len(set(steps)) == 1, "all ranks are at the same step"
    [count, weight] = steps[0]
    assert whole[0][count - 1] == weight, "the lines after optimizer.step() belong to the step"


def test_arming_needs_to_know_when_and_a_directory(four: Reservation, tmp_path: Path) -> None:
    mesh = four.mesh
    for wrong in ({}, {"every": "10"}, {"every": "steps"}, {"every": "10m", "before": "5m"}):
        with pytest.raises(UsageError):
            mesh.autosave(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SaveError, match=r"^ranks 0-3: can not save in /proc/nope: No such file or directory$"):
        mesh.autosave("/proc/nope", at_end=True)
    assert mesh.autosave_status() is None
    with pytest.raises(UsageError, match="all ranks of a mesh"):
        mesh.select(0).autosave(tmp_path, at_end=True)


def test_before_the_time_is_up_ranks_save_without_a_kernel(shared_pool: list[Node], tmp_path: Path) -> None:
    """A client of its own reserves, trains, arms, and is gone before the time is. That the last save is young
    is no reason to leave out the one before the end: what came after it would be lost."""
    program = f"""
import time
dev = monarch_nb.reserve("short", nodes=2, procs=2, time="1h")
dev.mesh.run({PREPARE!r})
dev.mesh.autosave({str(tmp_path / "saves")!r}, at_end=True, before="30m", every="500steps")
dev.mesh.submit({f"import time{TRAIN.format(stop='/nowhere')}    time.sleep(0.1 * (len(history) > 500))"!r})
while [rank.state for rank in dev.mesh.status()] != ["running"] * 4:
    time.sleep(0.1)
"""
    with client(f"{program}\nprint('gone', flush=True)") as other:
        other.line()
    dev = attach("short")
    eventually(lambda: saves(tmp_path / "saves"))
    leave(dev, 20.0)
    eventually(lambda: not list_reservations())
    whys = [Manifest.read(path).origin.reason for path in saves(tmp_path / "saves")]
    assert whys[0] == "every 500 steps"
    assert "the time is up in" in whys[1]


def test_a_script_is_saved_as_it_is(four: Reservation, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    mesh = four.mesh
    mesh.autosave(tmp_path / "saves", every="1s")
    run = mesh.submit_script(str(tmp_path / "train.py"), str(tmp_path / "stop"))
    eventually(lambda: any(saves(each) for each in saves(tmp_path / "saves")))
    (tmp_path / "stop").touch()
    run.result()
    [of_run] = saves(tmp_path / "saves")
    names = mesh.saves(of_run)[0].names
    assert set(names) >= {"net", "optim", "scheduler"}


def test_scripts_hear_sigterm_before_the_time_is_up(four: Reservation, tmp_path: Path) -> None:
    """Those that have a handler for it; with `--at-end`, which waits for a step that they never make."""
    handles = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    (tmp_path / "train.py").write_text(f"{handles}\nprint('under way', flush=True)\nwhile True:\n    signal.pause()\n")
    four.mesh.autosave(tmp_path / "saves", at_end=True)
    recorder = Recorder()
    run = four.mesh.submit_script(str(tmp_path / "train.py"), listener=recorder)
    recorder.wait_for_text("under way", 4)
    leave(four, 8.0)
    run.result(TIMEOUT_S)
    said = [notice.text for notice in recorder.of(events.Notice) if "SIGTERM" in notice.text]
    assert len(said) == 1
    assert re.fullmatch(r"rank 0: the time is up in .* s: the script was sent SIGTERM", said[0])
    assert four.status().time_left_s, "it is still held"


def trainer() -> type[Actor]:
    """Return a class that ranks need not import: this module is not theirs."""

    class Trainer(Actor):
        def __init__(self) -> None:
            import torch

            torch.manual_seed(0)
            self.net = torch.nn.Linear(4, 1)
            self.optim = torch.optim.Adam(self.net.parameters(), lr=0.01)

        @endpoint
        def train(self, stop: str) -> None:
            """Make steps until a file is there, and at least one."""
            import os

            import torch

            while True:
                self.net(torch.ones(8, 4)).square().mean().backward()
                self.optim.step()
                if os.path.exists(stop):
                    break

    return Trainer


def assert_at_one_step(mesh: Mesh, directory: Path) -> None:
    """What trains is in all saves, and no rank was at another step than the others."""
    assert mesh.saves(directory)
    for info in mesh.saves(directory):
        assert set(info.names) >= {"net", "optim"}
        assert not [part for part in info.parts if part.name in ("net", "optim") and part.by_rank]


def test_a_training_in_an_endpoint_is_saved(four: Reservation, tmp_path: Path) -> None:
    trainers: Any = four.mesh.spawn("trainers", trainer())
    four.mesh.autosave(tmp_path / "saves", every="3steps")
    future = trainers.train.call(str(tmp_path / "stop"))
    eventually(lambda: saves(tmp_path / "saves"))
    (tmp_path / "stop").touch()
    future.get()  # nothing keeps ranks together: who sees the file a step later is no problem of the test
    assert_at_one_step(four.mesh, tmp_path / "saves")


def test_endpoints_that_make_a_step_each_are_saved_between_two_calls(four: Reservation, tmp_path: Path) -> None:
    """One call after the other; and after the last of them."""
    trainers: Any = four.mesh.spawn("trainers", trainer())

    def are_saved_while_they_step() -> bool:
        trainers.train.call(str(tmp_path)).get()
        return len(saves(tmp_path / "often")) >= 2

    four.mesh.autosave(tmp_path / "often", every="1s")
    eventually(are_saved_while_they_step)
    assert_at_one_step(four.mesh, tmp_path / "often")
    four.mesh.autosave(tmp_path / "last", every="3steps")
    for _ in range(3):
        trainers.train.call(str(tmp_path)).get()
    eventually(lambda: saves(tmp_path / "last"))
    assert_at_one_step(four.mesh, tmp_path / "last")
    status = four.mesh.autosave_status()
    assert status is not None
    assert status.problem == ""


def test_an_endpoint_that_waits_for_a_save_can_be_interrupted(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(
        "import torch, monarch_nb\n"
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Trainer(Actor):\n"
        "    @endpoint\n"
        "    def step(self):\n"
        "        net = torch.nn.Linear(2, 1)\n"
        "        net(torch.ones(2)).sum().backward()\n"
        "        torch.optim.SGD(net.parameters()).step()\n"
        "mesh = monarch_nb.attach('dev').mesh\n"
        "trainers = mesh.spawn('trainers', Trainer)\n"
        "trainers.step.call().get()"
    )
    never = "from monarch_nb.worker.autosaves.agreement import Part\nenter = Part.enter\n"
    refuses = "lambda part, each: print('it waits', flush=True) if each.actor else enter(part, each)"
    kernel.run(f"%%mesh\n{never}Part.enter = {refuses}")
    cell = kernel.start("trainers.step.call().get()")
    kernel.wait(cell, "it waits")
    kernel.interrupt()
    assert "interrupted trainers.step" in kernel.wait(cell)
    kernel.run("%%mesh\nPart.enter = enter")
    assert "Error" not in kernel.run("trainers.step.call().get()")


def test_an_interrupt_ends_a_save_between_two_cells(kernel: Kernel, tmp_path: Path) -> None:
    where, stuck = tmp_path / "saves", tmp_path / "stuck"
    stuck.mkdir()
    kernel.run(
        "%%mesh\n"
        "import time\nfrom pathlib import Path\n"
        "from monarch_nb.worker.saving import writing\n"
        "write, kept = writing._write, 7\n"
        "def hang(*arguments):\n"
        f"    while (stuck := Path({str(stuck)!r})).exists():\n"
        "        (stuck / str(rank)).touch()\n"
        "        time.sleep(0.01)\n"
        "    return write(*arguments)\n"
        "writing._write = hang"
    )
    kernel.run(f"%mesh save {where} --every 1s\nimport monarch_nb")
    eventually(lambda: len(list(stuck.iterdir())) == 4)
    assert kernel.run("%mesh interrupt") == "interrupted a save between two runs on ranks 0-3"
    assert not list(where.iterdir()), "what was half made is gone"
    stuck.rename(tmp_path / "before")
    stuck.mkdir()
    eventually(lambda: len(list(stuck.iterdir())) == 4)
    behind = "run = monarch_nb.attach('dev').mesh.submit('kept')\nprint(run.interrupt())"
    assert kernel.run(behind).strip() == "interrupted ranks 0-3", "it waits behind the next save"
    stuck.rename(tmp_path / "then")
    assert "7" in kernel.run("%%mesh\nkept")
    eventually(lambda: saves(where))


def test_in_a_notebook(kernel: Kernel, tmp_path: Path) -> None:
    where = tmp_path / "saves"
    assert "not released" in kernel.run("%mesh release --save")
    said = kernel.run(f"%mesh save {where} --every 2steps --at-end --keep 5")
    assert "every 2 steps" in said
    printed = kernel.run(
        "%%mesh\n"
        "import torch\n"
        "def train():\n"
        "    net = torch.nn.Linear(4, 1)\n"
        "    optimizer, best = torch.optim.SGD(net.parameters(), lr=0.01), 0.5\n"
        "    for _ in range(3):\n"
        "        net(torch.rand(2, 4)).sum().backward()\n"
        "        optimizer.step()\n"
        "train()\n"
    )
    assert "saved saves/0001 at step 2 (every 2 steps): " in printed
    assert "net, optimizer" in printed, "locals of the function that trains"
    assert "; not saved, because only functions have them: best\n" in printed
    assert "best" in Manifest.read(where / "0001").left_out
    assert "not loaded: net, optimizer" in kernel.run(f"%mesh load {where}")
    assert re.search(r"last saved saves/0001 at step 2 of run \d+", kernel.run("%mesh status"))
    assert re.search(r"saves/0001 .* dev, run \d+, step 2, every 2 steps ", kernel.run(f"%mesh saves {where}"))
    assert (
        kernel.run("%mesh save --off")
        == "ranks no longer save by themselves: %mesh save DIR --every 10m has them do it again"
    )
    assert "save by themselves" not in kernel.run("%mesh status")
    kernel.run(f"%mesh save {where} --at-end")
    kernel.run("%%mesh\nnumber = rank")
    said = kernel.run("%mesh release --save")
    assert "saved saves/0002" in said
    assert "released" in said
    assert len(saves(where)) == 2
