"""What counts as a step, with one optimizer and with several."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator

import pytest
import torch

from monarch_nb.worker.steps import StepCounter, Watch


def completed(calls: str) -> str:
    """Return the calls of optimizers, those that complete a step as capitals."""
    counter = StepCounter()
    return "".join(name.upper() if counter.completes(name) else name for name in calls)


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("aaaa", "AAAA"),
        ("dgdgdg", "DGdGdG"),  # a GAN: the generator ends a round
        ("dddddgdddddgdddddg", "DDDDDGdddddGdddddG"),  # WGAN: five critic's steps for each of the generator's
        ("gdddgdddgddd", "GDDDgddDgddD"),  # the same, the generator first
        ("abcabcabc", "ABCabCabC"),
        ("aaabbb", "AAABBB"),  # one model after the other
        ("abab" + "a" * 20, "ABaB" + "a" * 17 + "AAA"),  # the loop has changed
    ],
)
def test_steps(calls: str, steps: str) -> None:
    assert completed(calls) == steps


@pytest.fixture
def watch() -> Iterator[Watch]:
    optimizers = importlib.import_module("torch.optim.optimizer")
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    before = [dict(each) for each in hooks]
    made = Watch(lambda _: None)
    made.begin()
    yield made
    made.call_off()
    for each, kept in zip(hooks, before, strict=True):
        each.clear()
        each.update(kept)


def test_the_moment_between_two_steps_is_when_a_module_that_trains_is_called(watch: Watch) -> None:
    model, called = torch.nn.Sequential(torch.nn.Linear(2, 2)), list[str]()
    watch.call_between(lambda: called.append("now"))
    with torch.no_grad():
        model(torch.ones(2))
    model.eval()
    model(torch.ones(2))
    assert called == [], "how good a model is may be looked at on some ranks alone"
    model.train()
    thread = threading.Thread(target=model, args=(torch.ones(2),))
    thread.start()
    thread.join()
    assert called == [], "another thread is not in the loop"
    model(torch.ones(2))
    model(torch.ones(2))
    assert called == ["now"], "once"
    assert not torch.nn.modules.module._global_forward_pre_hooks, "nothing stays in the way"


def test_without_a_module_it_is_the_next_step(watch: Watch) -> None:
    weight, called = torch.ones(2, requires_grad=True), list[float]()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.sum().backward()
    optimizer.step()
    watch.call_between(lambda: called.append(float(weight.detach()[0])))
    optimizer.step()
    optimizer.step()
    assert called == [0.0], "before it changes anything"


def test_a_step_that_a_scaler_skips_is_none(watch: Watch) -> None:
    stepped: list[object] = []
    watch._stepped = stepped.append
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(stepped) == 2
