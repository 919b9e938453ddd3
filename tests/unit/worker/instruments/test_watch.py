"""`--watch nan` in this process: where nobody can answer a debugger, the step raises."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from monarch_nb.errors import NotFinite
from monarch_nb.worker.instruments.batches import not_finite
from monarch_nb.worker.instruments.watch import Watch

NAN, INF = math.nan, math.inf


class Net(nn.Module):
    """The logarithm of a negative number is nan."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return torch.as_tensor(self.head(self.inner(x * scale)))


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Begin watches, which end with the test."""
    begun: list[Watch] = []

    def begin(*what: str) -> Watch:
        begun.append(Watch(what or ("grad",)))
        begun[-1].begin()
        return begun[-1]

    yield begin
    for each in begun:
        each.end()
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    assert not optimizers._global_optimizer_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert torch.autograd.backward.__module__ == "torch.autograd"


def step(
    net: nn.Module,
    x: torch.Tensor,
    optimizer: torch.optim.Optimizer | None = None,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = torch.sum,
    **options: Any,
) -> None:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    loss_of(net(x, **options)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def found(action: Callable[[], object]) -> str:
    with pytest.raises(NotFinite) as raised:
        action()
    return str(raised.value)


def test_which_module_was_first(watch: Callable[..., Watch]) -> None:
    """With its keyword arguments, and nothing is another afterwards."""
    net, x = Net(), torch.rand(8, 4) + 0.95
    nn.init.ones_(net.inner[0].weight)  # type: ignore[arg-type]
    watch()
    step(net, x, torch.optim.SGD(net.parameters(), lr=0.0))
    net.zero_grad()
    before = [each.clone() for each in net.buffers()]
    torch.manual_seed(5)
    text = found(lambda: step(net, x, scale=1e38))
    drawn = torch.rand(1)
    assert text.startswith("the gradients of ")
    assert " are not finite in step 2: inner.0.weight, " in text
    assert text.endswith("; the first output that is not finite is that of inner.0 (Linear)")
    torch.manual_seed(5)
    torch.nn.functional.dropout(torch.ones(8, 4))
    assert torch.equal(drawn, torch.rand(1)), "the batch that was run again has drawn nothing"
    assert net.inner[2].num_batches_tracked == before[2] + 1


def test_a_batch_that_is_not_finite_and_one_that_was_changed(watch: Callable[..., Watch]) -> None:
    net, x = Net(), torch.full((8, 4), NAN)
    watch()
    assert found(lambda: step(net, x)).endswith("the batch itself is not finite")

    def change() -> None:
        loss = net(x).sum()
        x.zero_()
        loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()

    x = torch.full((8, 4), NAN)
    watch()
    assert found(change).endswith("can not be told: its batch was changed in place since")
    linear = nn.Linear(4, 1)
    watch()
    linear(torch.full((8, 4), INF)).sum().backward()  # an earlier batch of an accumulated step
    told = found(lambda: step(linear, torch.randn(8, 4)))
    assert "outputs of the modules are finite here: it arose in backward or with the batch before it" in told


def test_what_a_scaler_leaves_out_is_no_fault(watch: Callable[..., Watch]) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    looked = watch()
    for batch in (torch.full((8, 4), INF), torch.randn(8, 4)):
        optimizer.zero_grad()
        scaler.scale(net(batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert looked.end()["found"] == ""


def test_the_loss_and_the_parameters(watch: Callable[..., Watch]) -> None:
    net = nn.Linear(4, 1)
    nn.init.ones_(net.weight)
    watch("loss")
    told = found(lambda: step(net, torch.full((8, 4), 1e38)))
    assert told == "the loss of step 1 is inf; the first output that is not finite is that of Linear"
    watch("grad", "param")
    optimizer = torch.optim.SGD(net.parameters(), lr=3e38)
    told = found(lambda: step(net, torch.full((8, 4), 9.0), optimizer))
    assert told.startswith("2 of 2 parameters are not finite after step 1: weight, bias; their gradients are finite")


def test_forward_passes_that_wait_for_others_are_not_run_again(watch: Callable[..., Watch], tmp_path: Any) -> None:
    import torch.distributed as dist

    class Talks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(torch.ones(1))
            return torch.as_tensor(self.head(x)) * NAN

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        watch()
        told = found(lambda: step(Talks(), torch.randn(8, 4)))
        assert told.endswith("can not be told: its forward pass waits for other ranks")
    finally:
        dist.destroy_process_group()


def test_gradients_of_a_closure(watch: Callable[..., Watch]) -> None:
    """They arise within the step. A step without gradients is not called finite."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return torch.as_tensor(loss)

    looked = watch()
    optimizer.step(lambda: closure(torch.randn(8, 4)))  # type: ignore[no-untyped-call]
    assert looked.end().items() >= {"steps": 1, "looked_at": 1, "found": ""}.items()
    watch()
    told = found(lambda: optimizer.step(closure=lambda: closure(torch.full((8, 4), NAN))))  # type: ignore[no-untyped-call]
    assert told.startswith("the gradients of 2 of 2 parameters are not finite in step 1: weight, bias; the loss is nan")
    looked = watch()
    torch.optim.SGD(nn.Linear(4, 1).parameters()).step()
    assert looked.end().items() >= {"steps": 1, "looked_at": 0, "found": ""}.items()


@pytest.mark.parametrize("what", ["grad", "loss"])
def test_it_arose_in_the_loss(watch: Callable[..., Watch], what: str) -> None:
    net = nn.Linear(4, 1)
    watch(what)
    told = found(lambda: step(net, torch.randn(8, 4), loss_of=lambda output: (output * NAN).sum()))
    assert told.endswith("; all outputs of the modules are finite here: it arose in the loss")
    assert ("the loss is nan here; all outputs" in told) == (what == "grad")


class Blown(nn.Module):
    """Divides by nothing between two modules."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4) if first else nn.Identity()
        self.b = nn.Sequential(nn.Linear(4, 4))
        self._first = first

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.a(x) if self._first else x
        return torch.as_tensor(self.b(x / x.sub(x)))


def test_an_input_that_is_not_finite_already(watch: Callable[..., Watch]) -> None:
    """The innocent module is not accused, nor a mask."""
    watch()
    told = found(lambda: step(Blown(first=True), torch.randn(8, 4)))
    assert told.endswith(
        "the input of b (Sequential) is not finite already: it arose in Blown.forward after a (Linear)"
    )
    watch()
    told = found(lambda: step(Blown(first=False), torch.randn(8, 4)))
    assert told.endswith("the input of b (Sequential) is not finite already: it arose in Blown.forward before it")
    attention = nn.TransformerEncoderLayer(4, 1, 4)
    nn.init.constant_(attention.linear2.weight, 3e38)
    nn.init.ones_(attention.linear1.bias)
    inner = nn.Sequential(attention)
    mask = torch.triu(torch.full((8, 8), -INF), 1)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = inner[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.layer(x, src_mask=mask))

    watch()
    told = found(lambda: step(Outer(), torch.randn(8, 1, 4)))
    assert told.endswith("the first output that is not finite is that of layer.linear2 (Linear)")


def test_tensors_of_all_kinds() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([NAN]), (4,), check_invariants=True)
    kinds: list[tuple[list[torch.Tensor | None], list[int]]] = [
        ([torch.ones(3), None, torch.tensor([1.0, NAN])], [2]),
        ([torch.full((9,), 3e38), torch.ones(2, dtype=torch.float64)], []),
        ([torch.tensor([-INF], dtype=torch.bfloat16), torch.tensor([1]), torch.zeros(0)], [0]),
        ([sparse, torch.ones(1, device="meta")], [0]),
        ([torch.tensor([complex(1, NAN)]), torch.full((2,), 60000.0, dtype=torch.float16)], [0]),
    ]
    for tensors, places in kinds:
        assert not_finite(tensors) == places
