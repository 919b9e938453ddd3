"""Every optimizer of torch that replicas or shards can have goes on from a save: fresh or after steps, on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import SaveError

pytestmark = [pytest.mark.slow, pytest.mark.shape(nodes=1, procs=2)]

MAKE = """
import torch, warnings
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
warnings.simplefilter("ignore")
dist.is_initialized() or dist.init_process_group("gloo")
NAMES = [each for each in torch.optim.__all__ if isinstance(getattr(torch.optim, each), type)]
class Norms(torch.optim.SGD):
    def step(self, closure):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["norm"] = parameter.grad.pow(2).sum()
torch.optim.Norms = Norms
def make(name, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.Tanh(), torch.nn.Linear(6, 4, bias=False))
    if wrap == "ddp":
        model = DistributedDataParallel(model)
    elif wrap == "fsdp2":
        fully_shard(model)
    return {"model": model, "optimizer": getattr(torch.optim, name)(model.parameters(), lr=0.01)}
def train(each, steps):
    for step in range(steps):
        def closure():
            each["optimizer"].zero_grad()
            generator = torch.Generator().manual_seed(7 * step + dist.get_rank())
            loss = each["model"](torch.randn(5, 4, generator=generator)).pow(2).mean()
            loss.backward()
            return loss
        each["optimizer"].step(closure)
def hold(names, seed, steps):
    held = {}
    for name in names:
        try:
            train(held.setdefault(name, make(name, seed)), steps)
        except Exception as error:
            print(name, type(error).__name__, str(error)[:100])
            held.pop(name, None)
    return held
def weights(each):
    full = [getattr(each, "full_tensor", lambda each=each: each)() for each in each["model"].parameters()]
    return [each.flatten().tolist() for each in full]
def go_on(steps):
    for each in held.values():
        train(each, steps)
    return {name: weights(each) for name, each in held.items()}
"""


@pytest.mark.parametrize(("wrap", "other"), [("ddp", "fsdp2"), ("fsdp2", "ddp")], ids=["ddp", "fsdp2"])
def test_every_optimizer_goes_on_as_it_was(mesh: Mesh, tmp_path: Path, wrap: str, other: str) -> None:
    mesh.run(f"wrap = {wrap!r}\n{MAKE}")
    names = mesh.run("held = hold(NAMES, 0, 3); list(held)").values[0]
    assert {"Adam", "LBFGS", "Muon"} <= {*names}
    mesh.save(str(tmp_path), ["held"])
    expected = mesh.run("go_on(2)").values
    for steps in (0, 1):
        mesh.run(f"held = hold({names}, 1, {steps})")
        mesh.load(str(tmp_path))
        assert mesh.run("go_on(2)").values == expected, f"bit for bit, after {steps} steps"

    mesh.run(f"wrap = {other!r}")
    of_both = mesh.run(f"list(hold({names}, 0, 1))").values[0]
    mesh.run(f"held = hold({of_both}, 1, 0)")
    mesh.load(str(tmp_path), [f"held.{name}" for name in of_both])
    for name, rows in mesh.run("go_on(2)").values[0].items():
        for row, before in zip(rows, expected[0][name], strict=True):
            assert row == pytest.approx(before, abs=1e-3), name


def test_what_ranks_have_yet_to_sum_up_is_not_saved_as_if_it_were_whole(mesh: Mesh, tmp_path: Path) -> None:
    mesh.run(f"wrap = 'fsdp2'\n{MAKE}")
    mesh.run("held = hold(['Norms'], 0, 1)['Norms']")
    with pytest.raises(SaveError, match=r"held\.optimizer\.state\.0\.norm is a tensor of which each rank has a"):
        mesh.save(str(tmp_path), ["held"])
