"""notebooks/inside.ipynb: each fault that it plants is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from integration.notebooks import Executed, execute
from integration.pools import release_all
from monarch_nb.provision import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def inside(shared_pool: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executed]:
    """The notebook, executed once."""
    try:
        yield execute("inside", tmp_path_factory.mktemp("inside"))
    finally:
        release_all()  # nothing is held, unless the notebook failed half-way


def test_the_rank_with_another_weight_is_named(inside: Executed) -> None:
    assert "rank 2 differs: greatest |difference| 0.25 at [17, 4]" in inside.text("%mesh diff model")
    assert "4 tensors are equal on ranks 0-3" in inside.text("%mesh diff model", 1)


def test_the_nan_is_named_with_its_rank_step_and_module(inside: Executed) -> None:
    text = inside.text("--watch nan\n")
    assert re.search(r"rank 1.*?of root \(Root\)", text, re.DOTALL), text
    assert "not finite in step 7: first.weight, first.bias, last.weight" in text
    assert "--watch: 10 steps on ranks 0-3, all finite" in inside.text("--watch nan=loss,grad,param")


def test_the_slow_rank_is_named_with_its_line(inside: Executed) -> None:
    text = inside.text("%mesh top --once")
    assert re.search(r"Slow: rank 3 spends \d+% of its time in Cell In\[\d+\]:5", text), text
    assert "ranks 0-2 wait for it in backward" in text
    flames = inside.text("--profile=python")
    assert "load" in flames
    assert ".speedscope.json" in flames
    profile = inside.text("%%mesh --profile\n")
    assert re.search(r"profile of rank 0: \d steps", profile), profile
    assert "trace: traces/" in profile


def test_what_holds_memory_is_named(inside: Executed) -> None:
    assert "model.first.weight" in inside.text("%mesh memory")


def test_the_collective_that_does_not_match_is_named(inside: Executed) -> None:
    text = inside.text("wait_hang")
    assert "in the default group is all_reduce of float32[1] on rank 0, all_gather of float32[4] on ranks 1-3" in text
    assert "on ranks 0-3" in inside.text("%mesh interrupt")
