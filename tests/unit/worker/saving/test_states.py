"""What tells its own state takes it back: every optimizer of torch, odd ones of people's own, schedulers, loaders, and
modules that are more than their weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import lr_scheduler, swa_utils
from torch.testing._internal.two_tensor import TwoTensor
from torchdata.stateful_dataloader import StatefulDataLoader

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving.asked import LoadReport
from unit.worker.saving.threads import loaded, saved

pytestmark = pytest.mark.filterwarnings("ignore")


class Growing(torch.optim.Optimizer):
    """Keeps what it has seen in rows, and its last steps in a list. `best` is a number at first and a tensor later.
    `anchor` is the parameter's own memory until it moves away from it."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {"best": 0, "rows": parameter.grad.new_zeros(0, parameter.numel()), "last": []}
                state["anchor"] = parameter.detach()
            else:
                state["anchor"] = state["anchor"] * 0.5
                state["best"] = state["best"] + parameter.grad.norm()
            state["rows"] = torch.cat([state["rows"], parameter.grad.reshape(1, -1)])
            state["last"] = [*state["last"], state["rows"][-1]][-3:] if state["last"] else [state["rows"][-1]] * 3
            moved = state["rows"].mean(0) + sum(state["last"]) + state["best"]
            with torch.no_grad():
                parameter -= self.param_groups[0]["lr"] * (moved.view_as(parameter) + state["anchor"])


class Blocks(torch.optim.Optimizer):
    """Eight bits a number, in blocks with a scale each; its state is in a form of its own, and goes by names."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        self.blocks: dict[str, Any] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        for place, parameter in enumerate(self.param_groups[0]["params"]):
            codes, scales = self.blocks.get(f"p{place}", (None, None))
            flat = nn.functional.pad(parameter.grad.flatten(), (0, -parameter.numel() % 4)).view(-1, 4)
            if codes is not None:
                flat = flat + codes.float() * scales[:, None]
            scales = flat.abs().amax(1) / 127
            self.blocks[f"p{place}"] = (flat / scales[:, None]).to(torch.int8), scales
            with torch.no_grad():
                parameter -= 0.01 * flat.flatten()[: parameter.numel()].view_as(parameter)

    def state_dict(self) -> dict[str, Any]:
        return {"blocks": {name: {"codes": each[0], "scales": each[1]} for name, each in self.blocks.items()}}

    def load_state_dict(self, state: Any) -> None:
        self.blocks = {name: (each["codes"], each["scales"]) for name, each in (state["blocks"] or {}).items()}


class Preconditioned(torch.optim.Optimizer):
    """A matrix for each dimension, of all parameters in one piece of memory."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        for parameter in self.param_groups[0]["params"]:
            state, sizes = self.state[parameter], parameter.shape
            if not state:
                flat = torch.zeros(sum(size * size for size in sizes))
                parts = flat.split([size * size for size in sizes])
                state["factors"] = {dim: part.view(sizes[dim], -1) for dim, part in enumerate(parts)}
            moved = parameter.grad
            for dim, factor in state["factors"].items():
                rows = parameter.grad.movedim(dim, 0).reshape(sizes[dim], -1)
                factor += rows @ rows.T
                moved = torch.tensordot(torch.eye(len(rows)) / (1 + factor.trace()), moved, ([1], [dim])).movedim(
                    0, dim
                )
            with torch.no_grad():
                parameter -= self.param_groups[0]["lr"] * moved


OPTIMIZERS: dict[str, Any] = {
    name: made
    for name in torch.optim.__all__
    if isinstance(made := getattr(torch.optim, name), type) and made is not torch.optim.Optimizer
}
OPTIMIZERS |= {each.__name__: each for each in (Growing, Blocks, Preconditioned)}


def make(optimizer: str, seed: int, **settings: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=optimizer != "Muon"))
    if optimizer == "SparseAdam":
        model = nn.EmbeddingBag(9, 3, sparse=True, mode="sum")
    return {"model": model, "optimizer": OPTIMIZERS[optimizer](model.parameters(), **{"lr": 0.01} | settings)}


def train(held: dict[str, Any], steps: int) -> None:
    sparse = isinstance(held["model"], nn.EmbeddingBag)
    for step in range(steps):

        def closure(step: int = step) -> torch.Tensor:
            generator = torch.Generator().manual_seed(step)
            batch = torch.randint(9, (5, 2), generator=generator) if sparse else torch.randn(5, 4, generator=generator)
            held["optimizer"].zero_grad()
            loss: torch.Tensor = (held["model"](batch) - 1).pow(2).mean()
            loss.backward()
            return loss

        held["optimizer"].step(closure)


def weights(held: dict[str, Any]) -> list[list[float]]:
    return [each.flatten().tolist() for each in held["model"].parameters()]


def load_into(directory: Path, *held: dict[str, Any]) -> None:
    reports = loaded(directory, [*held])
    assert all(isinstance(each, LoadReport) for each in reports), reports


@pytest.mark.parametrize("steps", [0, 1, 4], ids=["fresh", "stepped", "further"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_as_it_was(tmp_path: Path, name: str, steps: int) -> None:
    before, now = make(name, 0), make(name, 1)
    train(before, 3)
    saved(tmp_path, [before])
    train(before, 2)
    train(now, steps)
    load_into(tmp_path, now)
    train(now, 2)
    assert weights(now) == weights(before), "bit for bit"


@pytest.mark.parametrize("steps", [0, 1])
def test_a_state_of_tensors_that_are_made_of_others_is_loaded(tmp_path: Path, steps: int) -> None:
    before, now = make("SGD", 0, momentum=0.9), make("SGD", 1, momentum=0.9)
    train(before, 1)
    first = next(before["model"].parameters())
    before["optimizer"].state[first]["momentum_buffer"] = TwoTensor(torch.full((6, 4), 2.0), torch.full((6, 4), 3.0))
    assert saved(tmp_path, [before, before]).left_out == {}
    train(now, steps)
    load_into(tmp_path, now)
    buffer = now["optimizer"].state[next(now["model"].parameters())]["momentum_buffer"]
    assert (type(buffer), buffer.a[0, 0].item(), buffer.b[0, 0].item()) == (TwoTensor, 2, 3)


@pytest.mark.parametrize(("was", "is_now"), [(torch.tensor(0.5), 0.1), (0.5, torch.tensor(0.1))])
def test_what_is_now_a_number_and_now_a_tensor_is_loaded(tmp_path: Path, was: Any, is_now: Any) -> None:
    before, now = make("Adam", 0, lr=was, foreach=False), make("Adam", 1, lr=is_now, foreach=False)
    train(before, 1)
    train(now, 1)
    saved(tmp_path, [before])
    load_into(tmp_path, now)
    assert now["optimizer"].param_groups[0]["lr"] == 0.5


def test_the_state_of_other_parameters_is_refused_where_there_is_one(tmp_path: Path) -> None:
    before, now = make("Adam", 0), make("Adam", 1)
    other = nn.Parameter(torch.ones(2, 2))
    other.grad = torch.ones(2, 2)
    now["optimizer"] = torch.optim.Adam([other, *list(now["model"].parameters())[1:]])
    train(before, 1)
    saved(tmp_path, [before])
    now["optimizer"].step()
    [error] = loaded(tmp_path, [now], "optimizer")
    assert isinstance(error, SaveError)
    assert "optimizer.state.0.exp_avg has the shape (2, 2) here, and (6, 4) in the save" in str(error)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda of: lr_scheduler.LambdaLR(of, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda of: lr_scheduler.MultiplicativeLR(of, lambda epoch: 0.9),
    "StepLR": lambda of: lr_scheduler.StepLR(of, 2),
    "MultiStepLR": lambda of: lr_scheduler.MultiStepLR(of, [1, 3]),
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda of: lr_scheduler.ExponentialLR(of, 0.9),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "CosineAnnealingLR": lambda of: lr_scheduler.CosineAnnealingLR(of, 9),
    "CosineAnnealingWarmRestarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 2),
    "CyclicLR": lambda of: lr_scheduler.CyclicLR(of, 0.1, 0.5, 2, cycle_momentum=False),
    "OneCycleLR": lambda of: lr_scheduler.OneCycleLR(of, 0.5, 9),
    "ReduceLROnPlateau": lambda of: lr_scheduler.ReduceLROnPlateau(of, patience=0),
    "ChainedScheduler": lambda of: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(of)]),
    "SequentialLR": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.ConstantLR(of), lr_scheduler.ExponentialLR(of, 0.9)], [2]
    ),
    "SWALR": lambda of: swa_utils.SWALR(of, 0.5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_as_it_was(tmp_path: Path, name: str) -> None:
    before, now = make("SGD", 0), make("SGD", 1)
    metric = [torch.tensor(1.0)] if name == "ReduceLROnPlateau" else []
    for each in (before, now):
        each["scheduler"] = SCHEDULERS[name](each["optimizer"])
    for _ in range(3):
        before["scheduler"].step(*metric)
    saved(tmp_path, [before])
    load_into(tmp_path, now)
    rates = []
    for each in (before, now):
        each["scheduler"].step(*metric)
        rates.append(each["optimizer"].param_groups[0]["lr"])
    assert rates[0] == rates[1]


def test_every_scheduler_of_torch_is_tried() -> None:
    assert {*lr_scheduler.__all__} - {"LRScheduler"} <= SCHEDULERS.keys()


def test_a_scaler_and_a_loader_go_on_as_they_were(tmp_path: Path) -> None:
    def new() -> dict[str, Any]:
        loader = StatefulDataLoader(list(range(8)), batch_size=2, shuffle=True)
        return {"scaler": torch.amp.GradScaler("cpu", init_scale=8), "loader": loader}

    before, now, late = new(), new(), new()
    before["scaler"].scale(torch.ones(1))
    before["scaler"].update(4.0)
    batches, others = iter(before["loader"]), iter(late["loader"])
    next(batches), next(others), next(others)
    saved(tmp_path, [before])
    rest = [each.tolist() for each in batches]
    for each in (now, late):
        load_into(tmp_path, each)
        assert each["scaler"].get_scale() == 4
        assert [batch.tolist() for batch in each["loader"]] == rest


class Adapted(nn.Module):
    """Tells the weights that it trains, and not the large ones that it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(4, 1), nn.Linear(1, 4)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        whole = super().state_dict(*args, **kwargs)
        for name in [name for name in whole if name.startswith("base.")]:
            del whole[name]
        return whole


class Extra(nn.Module):
    """Has more state than tensors of fixed shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.history, self.seen = torch.zeros(0), 0

    def get_extra_state(self) -> Any:
        return {"history": self.history, "seen": self.seen, **({"more": torch.ones(1)} if self.seen else {})}

    def set_extra_state(self, state: Any) -> None:
        self.history, self.seen = state["history"], state["seen"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight


class Inside(nn.Module):
    """A part of it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.part: Any = torch.compile(nn.Linear(4, 4), backend="eager")


MODULES: dict[str, Callable[[], nn.Module]] = {
    "averaged": lambda: swa_utils.AveragedModel(nn.Linear(4, 4), use_buffers=True),
    "adapted": Adapted,
    "tied": Tied,
    "compiled": lambda: torch.compile(nn.Linear(4, 4), backend="eager"),  # type: ignore[return-value]
    "compiled inside": Inside,
    "parametrised": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "spectral": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "lazy": lambda: nn.LazyLinear(4),
    "extra": Extra,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_loaded_into_a_new_one(tmp_path: Path, name: str) -> None:
    before, now = MODULES[name](), MODULES[name]()
    if isinstance(before, swa_utils.AveragedModel):
        before.update_parameters(nn.Linear(4, 4))
    if isinstance(before, Extra):
        before.history, before.seen = torch.ones(3), 7
    if name == "lazy":
        before(torch.ones(1, 4))
    state = copy.deepcopy(before.state_dict())
    kept = [*now.parameters()]
    saved(tmp_path, [{"model": before}, {"model": before}])
    load_into(tmp_path, {"model": now})
    own = now.state_dict()
    assert list(own) == list(state)
    assert all(torch.equal(own[key], state[key]) for key in state if not key.endswith("_extra_state"))
    assert all(a is b for a, b in zip(kept, now.parameters(), strict=True)), "its optimizer knows these"
    if isinstance(now, Extra):
        assert (now.history.tolist(), now.seen) == ([1, 1, 1], 7)
    if isinstance(now, Tied):
        assert now.inner.weight is now.outer.weight
    assert parametrize.is_parametrized(now) == parametrize.is_parametrized(before)


def test_a_module_without_memory_says_how_it_gets_some(tmp_path: Path) -> None:
    before = nn.Linear(4, 4)
    saved(tmp_path, [{"model": before, "optimizer": torch.optim.Adam(before.parameters())}])
    with torch.device("meta"):
        now = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(now.parameters())
    [error] = loaded(tmp_path, [{"model": now, "optimizer": optimizer}])
    assert isinstance(error, SaveError)
    assert {*error.problems} == {"model", "optimizer"}
    assert "`model` is on the device meta" in str(error)
    assert "to_empty(device=device) gives it some" in str(error)
    now.to_empty(device="cpu")
    load_into(tmp_path, {"model": now, "optimizer": torch.optim.Adam(now.parameters())})
    assert torch.equal(now.weight, before.weight)
