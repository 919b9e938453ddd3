"""What is kept of a namespace, as what, and what is not, and why."""

from __future__ import annotations

import collections
import io
import math
import random
from typing import Any

import numpy
import pytest
import torch

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving.collecting import RANDOM_STATES, collect


class Loader:
    def state_dict(self) -> dict[str, int]:
        return {"at": 3}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (torch.nn.Linear(1, 1), "state"),
        (torch.ones(2), "tensor"),
        (3, "value"),
        ({"a": [1, (2.5, None)], 2: {b"x"}}, "value"),
        (numpy.arange(3), "value"),
        ([torch.ones(1)], "value"),
        (collections.defaultdict(list, a=[1]), "value"),
        (torch.float32, "value"),
        (random.Random(1), "random states"),
        (numpy.random.default_rng(1), "random states"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_kept(value: object, kind: str) -> None:
    assert collect({"x": value}).holders["x"].kind == kind


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (len, "a function: the notebook's cells make it again"),
        (math, "a module: the notebook's cells make it again"),
        (io.BytesIO(), "an open file: the notebook's cells make it again"),
        ({torch.nn.Linear(1, 1)}, "a container that holds a Linear: give that a name of its own"),
        ({1: Loader(), "1": Loader()}, "a container that holds a Loader: give that a name of its own"),
        (object(), "an object: no plain value, and has no state_dict()"),
        (Point(1, 2), "a Point: no plain value, and has no state_dict()"),
        (collections.defaultdict(lambda: 0), "a defaultdict that calls a function"),
        (numpy.array([object()]), "an array of Python objects"),
        (torch.ones(2).to_sparse(), "a tensor that is sparse_coo"),
        (torch.ones(2, device="meta"), "a tensor on the device meta has no data"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_kept_and_why(value: object, why: str) -> None:
    collected = collect({"x": value})
    assert collected.left_out == {"x": why}
    with pytest.raises(SaveError) as refused:
        collect({"x": value}, ["x"])
    assert str(refused.value) == f"`x` can not be saved: {why}"


def test_an_object_with_several_names_is_saved_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    namespace: dict[str, Any] = {"head": model[0], "model": model, "same": model, "weight": model[0].weight}
    namespace |= {"compiled": torch.compile(model), "_hidden": 1, "rank": 0}
    collected = collect(namespace, hidden={"rank"})
    assert set(collected.holders) == {"model", RANDOM_STATES}
    assert collected.aliases == dict.fromkeys(["same", "compiled", "head", "weight"], "model")
    assert set(collect(namespace, ["_hidden", "rank"], hidden={"rank"}).holders) == {"_hidden", "rank"}
    collected = collect(namespace, ["model", "compield"])
    assert set(collected.holders) == {"model"}
    assert collected.missing == {"compield": "there is no such name; did you mean `compiled`?"}


def test_what_stands_in_containers_has_names() -> None:
    generator, critic = torch.nn.Linear(1, 2), torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, critic)]
    state: dict[str, Any] = {"nets": {"g": generator, "d": critic}, "epoch": 3, "call": len}
    namespace = {"state": state, "optimizers": optimizers, "pair": (critic, 3), "critic": critic, "again": optimizers}
    collected = collect(namespace)
    names = ("critic", "state.nets.g", "state.epoch", "optimizers.0", "optimizers.1", RANDOM_STATES)
    assert set(collected.holders) == {*names}
    assert collected.aliases == {"state.nets.d": "critic", "pair.0": "critic", "again": "optimizers"}
    assert set(collected.left_out) == {"state.call", "pair.1"}
    put = collected.holders["state.epoch"].put
    assert put is not None
    put(4)
    assert state["epoch"] == 4
    for asked in ("optimizers", "optimizers.1"):
        assert set(collect(namespace, [asked]).holders) == {name for name in names if name.startswith(asked)}
    assert collect(namespace, ["critik.e"]).missing == {"critik.e": "there is no such name; did you mean `critic`?"}
    loop: list[Any] = [Loader()]
    loop.append(loop)  # it holds itself
    assert set(collect({"loop": loop, "loops": [[loop, loop]] * 2}).holders) == {"loop.0", RANDOM_STATES}
