"""What user code is told of the world that it is in."""

from __future__ import annotations

import os
from typing import Any

import pytest

from monarch_nb.ground.places import Place
from monarch_nb.proto.run_pb2 import RunSpec
from monarch_nb.worker.runs.cells import Worlds

OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "PL_TRAINER_DEVICES")


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Rank 5 of 2 nodes × 4."""
    place = Place.among(5, range(8), per_node=4)
    for name, value in {**place.variables, **place.trainer_defaults}.items():
        monkeypatch.setenv(name, value)
    return {"rank": 5, "world_size": 8, "local_rank": 1}


def seen() -> list[str]:
    return [os.environ[name] for name in OWN]


def test_a_world_of_its_own_and_then_that_of_the_mesh_also_after_a_failure(namespace: dict[str, Any]) -> None:
    before = seen()
    world = Worlds(5, namespace).of(RunSpec(ranks=[4, 5, 6], own_world=True))
    world.__enter__()
    assert seen() == ["1", "3", "1", "3", "0", "3"]
    assert namespace == {"rank": 1, "world_size": 3, "local_rank": 1}
    assert not world.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (seen(), namespace) == (before, {"rank": 5, "world_size": 8, "local_rank": 1})
    with Worlds(5, namespace).of(RunSpec(ranks=[4, 5])):
        assert seen() == before, "a part without a world"


def test_what_users_have_set_is_theirs(namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    namespace["rank"] = 16  # of a low-rank adapter
    monkeypatch.setenv("PL_TRAINER_DEVICES", "1")
    with Worlds(5, namespace).of(RunSpec(ranks=[5], own_world=True)):
        assert (namespace["rank"], namespace["world_size"], seen()[-1]) == (16, 1, "1")
        namespace["world_size"] = "the cell's own"
    assert (namespace["rank"], namespace["world_size"], seen()[-1]) == (16, "the cell's own", "1")
