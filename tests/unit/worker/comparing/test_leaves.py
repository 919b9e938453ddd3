"""A value in named parts, and what of each is compared."""

from __future__ import annotations

import argparse
import pickle
import zlib
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

from monarch_nb.worker import comparing
from monarch_nb.worker.comparing import Leaves, whole_digest

Pair = namedtuple("Pair", "left right")


@dataclass
class Config:
    lr: float
    layers: tuple[int, ...]


def named(value: Any) -> dict[str, str]:
    return {leaf.path: f"{leaf.facts}: {leaf.contents}" for leaf in Leaves(value).all}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    comparing.end()


def test_containers_have_parts_at_any_depth() -> None:
    value = {"a": [1, Config(0.1, (2, 3))], "b": Pair("x", None), 7: {3, 1}, "d": argparse.Namespace(e=True)}
    assert named(value) == {
        "a[0]": "int: 1",
        "a[1].lr": "float: 0.1",
        "a[1].layers[0]": "int: 2",
        "a[1].layers[1]": "int: 3",
        "b.left": "str: 'x'",
        "b.right": "NoneType: None",
        "[7]": "str: '1, 3'",
        "d.e": "bool: True",
    }


def test_what_is_odd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    circle: list[Any] = [{}]
    circle.append(circle)
    assert named(circle) == {"[0]": "dict: (empty)", "[1]": "list: (contains itself)"}
    assert named(object()) == {"": "object: <object object at 0x…>"}
    assert named(Config)[""].endswith("test_leaves.Config")
    one, other = "x" * 500 + "a", "x" * 500 + "b"
    assert named(one) != named(other), "the digest of what is cut off"
    assert len(named(one)[""]) < 250
    monkeypatch.setattr(comparing, "MAX_LEAVES", 3)
    found = Leaves(list(range(10)))
    assert (len(found.all), found.left_out) == (3, 7)


def test_a_module_and_its_optimizer() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    found = named(module)
    assert found["0.weight"].startswith("[3, 2] float32 cpu requires_grad: ")
    assert found["1.num_batches_tracked"].startswith("[] int64 cpu: ")
    assert found["1.training"] == "bool: True"
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.5)
    module(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    state = named(optimizer)
    assert state["param_groups[0].lr"] == "float: 0.5"
    assert "state[0].exp_avg" in state


def test_contents_are_what_is_compared_not_strides() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert named(tensor) == named(tensor.t().contiguous().t())
    assert named(tensor) not in (named(tensor.t()), named(tensor.double()))
    assert named(torch.tensor([float("nan")])) == named(torch.tensor([float("nan")]))
    assert named(torch.tensor([0.0])) != named(torch.tensor([-0.0]))
    assert named(torch.empty(0, 3))[""].startswith("[0, 3] float32 cpu: ")
    assert named(torch.empty(2, device="meta"))[""].startswith("[2] float32 meta: ")
    assert named(numpy.arange(3)) == named(numpy.arange(6)[::2] // 2) != named(numpy.arange(1, 4))
    assert "object array" in named(numpy.array([None, "a"]))[""]
    one, again, other, name = (whole_digest(Leaves(each).all) for each in ({"a": 1}, {"a": 1}, {"a": 1.0}, {"b": 1}))
    assert one == again
    assert one not in (other, name)


# ---- questions and answers ----


def opened(answer: bytes) -> Any:
    return pickle.loads(zlib.decompress(answer))


def test_an_answer_is_read_in_pages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(comparing, "PAGE_CHARACTERS", 4)
    comparing.printed(b"abcd", 0)
    comparing.printed(b"", 1)
    assert capsys.readouterr().out == "<<more YWJj>>\n<<last ZA==>>\n"


def test_surroundings_are_the_same_twice_unless_numbers_are_drawn() -> None:
    for begin in (comparing.begin_random_states, lambda: comparing.begin_environment("salt")):
        assert opened(begin()) == opened(begin())
    before = opened(comparing.begin_random_states())
    torch.rand(1)
    assert opened(comparing.begin_random_states()) != before


def test_secrets_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "abc123")
    monkeypatch.setenv("RANK", "3")
    comparing.begin_environment("salt")
    told = {leaf[0]: leaf[2] for leaf in opened(comparing.leaves())}
    assert "abc123" not in str(told)
    assert told["variables.WANDB_API_KEY"].startswith("'(secret, ")
    assert "variables.RANK" not in told
    comparing.begin_environment("another")
    again = {leaf[0]: leaf[2] for leaf in opened(comparing.leaves())}
    assert again["variables.WANDB_API_KEY"] != told["variables.WANDB_API_KEY"], "nobody can try secrets against it"


def test_arrays_are_looked_at_as_tensors() -> None:
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4).T
    array.setflags(write=False)
    comparing.begin({"a": array, "names": numpy.array(["x"])})
    found = opened(comparing.look_at(["a", "names"]))
    assert list(found) == ["a"]
    assert found["a"][2] == [4, 3]
    code, contents = opened(comparing.elements([("a", 0)]))[0]
    assert numpy.frombuffer(contents, code).tolist() == array.ravel().tolist()
