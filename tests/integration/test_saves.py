"""What ranks hold goes to disk and comes back: on as many ranks, on others, and whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import monarch_nb
from integration.kernels import Kernel
from integration.live import eventually
from monarch_nb.actor import Actor, endpoint
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import SaveError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_pool")]

MODEL = """
import random, torch, numpy
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
{wrap}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
step, losses, config = 0, [], {{"a": {{1: (2.5, None)}}}}
noise = torch.full((3,), float(rank))
def train(steps):
    global step
    for _ in range(steps):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(8, 5, generator=generator)
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        losses.append(loss.item())
    return losses[-steps:]
"""
DDP = MODEL.format(wrap="model = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend='eager')")
FSDP2 = MODEL.format(
    wrap="""
from torch.distributed.fsdp import fully_shard
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notebook's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def ranks(number: int, nodes: int = 1) -> Iterator[Mesh]:
    """A mesh of fresh ranks."""
    held = monarch_nb.reserve("dev", nodes=nodes, procs=number // nodes)
    try:
        yield held.mesh
    finally:
        held.release()


def approximately(values: Any) -> Any:
    return pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("code", [DDP, FSDP2], ids=["ddp", "fsdp2"])
def test_a_training_goes_on_where_it_was(code: str) -> None:
    with ranks(4, nodes=2) as mesh:
        mesh.run(code)
        mesh.run("train(3); dice = random.Random(rank)")
        states = "random.getstate()[1][:5], torch.rand(1).item(), numpy.random.rand(), dice.random()"
        report = mesh.save("checkpoints/a")
        assert {"model", "optimizer", "scheduler", "step", "losses", "config", "noise", "random_states"} <= {
            part.name for part in report.parts
        }
        drawn = mesh.run(states).values
        expected = mesh.run("train(4)").values
        mesh.load("checkpoints/a", strict=True)
        assert mesh.run("step, config").values == [(3, {"a": {1: (2.5, None)}})] * 4
        assert mesh.run(states).values == drawn
        assert mesh.run("train(4)").values == expected, "bit for bit"
    for number in (4, 2):
        with ranks(number) as mesh:
            mesh.run(code)
            loaded = mesh.load("checkpoints/a", names=("model", "optimizer", "scheduler", "step", "losses", "noise"))
            assert mesh.run("step, len(losses)").values[0] == (3, 3)
            if number == 2:
                assert loaded.left_out["noise"] == "differs by rank: 4 saved, and 2 load"
                assert mesh.run("noise.tolist()").values == [[0.0] * 3, [1.0] * 3], "as it was"
            else:
                assert mesh.run("noise.tolist()").values == [[float(rank)] * 3 for rank in range(4)]
            if "compile" not in code or number == 4:
                assert mesh.run("train(4)").values[0] == approximately(expected[0])


def test_others_load_it_as_the_documentation_says(here: Path) -> None:
    """By its own program, in a process that does not have monarch_nb."""
    page = (Path(__file__).parents[2] / "docs" / "saving.md").read_text()
    program = re.search(r"^```python\n(.*?)^```", page.partition("## Without monarch_nb")[2], re.DOTALL | re.MULTILINE)
    assert program is not None
    found = (
        "import json, sys\nassert 'monarch_nb' not in sys.modules\n"
        "print(json.dumps([state['step'], model[0].weight.tolist(), noise_of_rank_1.tolist(), saved['losses'], "
        "optimizer.state[model[0].weight]['exp_avg'].tolist()]))\n"
    )
    with ranks(2) as mesh:
        mesh.run(FSDP2)
        mesh.run("train(2)")
        mesh.save("checkpoints/a", ["step"])
        mesh.save("checkpoints/a")
        full = "model[0].weight.full_tensor().tolist()"
        states = "optimizer.state[model[0].weight]['exp_avg'].full_tensor().tolist()"
        weights, losses, averages = mesh.run(f"{full}, losses, {states}").values[0]
    done = subprocess.run([sys.executable, "-I", "-c", program[1] + found], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [2, weights, [1.0] * 3, losses, averages]


def test_what_is_not_saved_is_told_and_the_last_saves_stay(here: Path) -> None:
    with ranks(2) as mesh:
        mesh.run("import math\ndef f(): pass\nclass C: pass\nthing, x, _hidden = C(), 3, 4")
        report = mesh.save("a", keep=2)
        assert {part.name for part in report.parts} == {"x", "random_states"}
        assert "a function" in report.left_out["f"]
        assert report.left_out["thing"] == "a C: no plain value, and has no state_dict()"
        assert "not saved: thing (a C: no plain value" in str(report)
        with pytest.raises(SaveError, match="`thing` can not be saved: a C: no plain value"):
            mesh.save("a", ["x", "thing"])
        mesh.save("a", ["x"], keep=2)
        assert len(mesh.save("a", ["x"], keep=2).removed) == 1
        assert sorted(os.listdir("a")) == ["0002", "0003"]
        assert [Path(info.path).name for info in mesh.saves("a")] == ["0003", "0002"]
        assert [info.names for info in mesh.saves(".")] == [("x",), ("x",)]
        for each in [here / "a", *(here / "a").rglob("*")]:
            assert each.stat().st_mode & 0o077 == 0, f"{each} is private"


def test_a_script_holds_up_no_save(here: Path) -> None:
    (here / "wait.py").write_text("import os\nwhile not os.path.exists('go'): pass")
    with ranks(2) as mesh:
        mesh.run("x = rank")
        script = mesh.submit_script("wait.py")
        eventually(lambda: any(info.running for info in mesh.unfinished()))
        mesh.save("a", ["x"])
        mesh.run("x = 7")
        mesh.load("a")
        assert mesh.run("x").values == [0, 1]
        assert not script.done, "it has processes of its own"
        (here / "go").touch()
        script.result(60)


def test_a_save_in_the_background_has_what_was_there_when_it_was_asked_for() -> None:
    with ranks(2) as mesh:
        mesh.run("import torch\nbig = torch.full((1 << 20,), float(rank)); same = torch.ones(1 << 20)")
        report = mesh.save("a", background=True)
        assert report.background
        mesh.run("big.zero_(); same.zero_()")
        assert mesh.save("a", ["big"]).path.endswith("0002"), "the second waits for the first"
        mesh.load("a/0001")
        assert mesh.run("big.mean().item(), same.mean().item()").values == [(0.0, 1.0), (1.0, 1.0)]


def test_a_notebook_saves_and_loads(kernel: Kernel) -> None:
    kernel.run("%%mesh\nimport torch\nmodel, step = torch.nn.Linear(2, 3), 5\nseen = [rank]")
    assert re.sub(r"[\d.]+ kB in [\d.]+ m?s, in a/0001", "…", kernel.run("%mesh save a")) == (
        "saved model, step, seen, random_states of 4 ranks: …\ndifferent by rank, and kept by rank: model, seen"
    )
    assert "staged in" in kernel.run("%mesh save a step --async")
    kernel.run("%mesh save a step --keep 2")
    assert "the save in the background is done: saved step of 4 ranks" not in kernel.run("%%mesh\nstep = 6")
    shown = kernel.run("%mesh saves a")
    assert shown.index("0003") < shown.index("0002")
    assert "0001" not in shown
    assert re.search(r"0003 .* dev, run \d+, In\[6\] ", shown)
    assert re.search(r"loaded step into 4 ranks: .* from a/0002$", kernel.run("%mesh load a/0002 --only step"))
    assert kernel.run("%%mesh\nstep") == "Out[0-3]: 5"
    assert "`model` is not in the save" in kernel.run("%mesh load a --only model,step")


def test_what_somebody_has_waited_for_is_not_told_as_unseen(kernel: Kernel) -> None:
    """Nodes learn of it a moment later than `%mesh status` asks them."""
    kernel.run("%%mesh\nimport torch\nstep = 5")
    mesh = "import monarch_nb\nmesh = monarch_nb.attach('dev').mesh\n"
    ways = ["mesh.save('a'); mesh.load('a')", "mesh.autosave('a', ['step'], every='1h')"]
    ways += ["run = mesh.submit('step'); assert run.wait(60); run.values", "mesh.submit('step').result(60)"]
    for line in (*(f"{mesh}{way}" for way in ways), "%mesh save a", "%mesh load a"):
        said = kernel.run(f"{line}\n%mesh status")
        assert "4 ranks" in said, said
        assert "nobody has seen" not in said
    kernel.run(f"{mesh}left = mesh.submit('step')")
    eventually(lambda: re.search(r"run \d+ \(step\) finished and nobody has seen it", kernel.run("%mesh status")))


def test_a_notebook_hears_what_to_do_next(kernel: Kernel) -> None:
    kernel.run("%%mesh\nmodel, step = [1], 5")
    said = kernel.run("%mesh save a modle step --every 10m")
    assert "did you mean `model`?" in said
    assert "until a rank has all of these names, nothing is saved" in said
    assert "no such name" not in kernel.run("%mesh save a step --every 10m --at-end")
    kernel.run("%%mesh --noblock --on-breakpoint=stop\nbreakpoint()\nimport threading\nthreading.Event().wait()")
    stopped = r"ranks 0-3 stopped at a breakpoint \(.*\): `c` at the prompt of %mesh debug lets them go on"
    eventually(lambda: re.search(stopped, kernel.run("%mesh save a")))
    releasing = kernel.start("%mesh release --save")
    kernel.wait(releasing, "releasing")
    kernel.interrupt()
    assert "interrupted: dev is not released; " in kernel.wait(releasing)
    kernel.run("%mesh interrupt")
    kernel.run("%mesh save --off")
    assert "`step` is a name of the ranks: say the directory first" in kernel.run("%mesh save step")
    assert "saved model, step" in kernel.run("%mesh save ./step")
    assert kernel.run("%mesh saves nowhere") == (
        "nowhere: 0 saves, because there is no such directory\n"
        "ranks have saved in step, a: %mesh saves step, %mesh saves a list that"
    )
    assert "saved step of 4 ranks" in kernel.run("%mesh save b step")
    kernel.run("%mesh detach")
    assert re.search(r"b: 1 save\n.*\n +b/0001 .* step$", kernel.run("%mesh saves b"), re.DOTALL)
    said = kernel.run("%mesh saves nowhere")
    assert "this computer sees no directory" in said
    assert "; ranks have saved in b, step: %mesh saves b, " in said


def test_an_interrupt_ends_what_ranks_wait_for_but_no_save_in_the_background() -> None:
    with ranks(2) as mesh:
        mesh.run("import torch\ndist.init_process_group('gloo')\nbig, x = torch.full((1 << 25,), float(rank)), 1")
        mesh.save("a", ["big"], background=True)
        run = mesh.submit("if rank == 0: dist.all_reduce(torch.ones(1))\nelse:\n    while True: pass")
        eventually(lambda: (place := mesh.where().get(0)) is not None and "all_reduce" in place.collective)
        with pytest.raises(SaveError, match=r"rank 0 waits in all_reduce .*rank 1, which is at"):
            mesh.save("b")
        assert not os.path.exists("b")
        mesh.interrupt()
        run.join(60)
        report = mesh.save("a", ["x"])
        assert report.path.endswith("0002")
        assert report.notes[0].startswith("the save in the background is done: saved big of 2 ranks")
        mesh.save("a", ["big"], background=True)
        mesh.restart()
        assert [info.names for info in mesh.saves("a")] == [("big",), ("x",), ("big",)], "a restart waits for it"


def test_actors_are_saved_by_what_they_hold() -> None:
    class Counter(Actor):
        def __init__(self) -> None:
            import torch

            self.model, self.count = torch.nn.Linear(2, 2), 0

        @endpoint
        def add(self) -> int:
            self.count += 1
            return self.count

    with ranks(2) as mesh:
        counters = mesh.spawn("counters", Counter)
        counters.add.call().get()
        with pytest.raises(
            AttributeError, match=re.escape("monarch_nb.attach(NAME).actors['counters'].save(DIRECTORY)")
        ):
            counters.save("a")
        held = monarch_nb.attach("dev").actors["counters"]
        assert {part.name for part in held.save("a").parts} == {"model", "count"}
        counters.add.call().get()
        assert held.load("a", ["count"]).names == ("count",)
        assert list(counters.add.call().get().values()) == [2, 2]


def test_a_disk_that_is_full_leaves_the_save_before(here: Path) -> None:
    with ranks(2) as mesh:
        mesh.run("import torch, resource\nbig = torch.rand(1 << 18)")
        mesh.save("a")
        mesh.run("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))", sync=False)
        with pytest.raises(SaveError, match=r"can not write in .*: File too large"):
            mesh.save("a")
        mesh.run("resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))")
        assert os.listdir("a") == ["0001"]
        mesh.load("a")
        file = here / "a" / "0001" / "__1_0.distcp"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(SaveError, match=r"__1_0.distcp` has [\d,]+ bytes in place of [\d,]+"):
            mesh.load("a")
