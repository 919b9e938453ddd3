"""What cells see of the actors of their rank."""

from __future__ import annotations

import pytest

from monarch_nb.worker.runs.values import LiveActors


def test_actors_by_name() -> None:
    instances: dict[str, object] = {}
    actors = LiveActors(lambda: instances)
    assert repr(actors) == "no actors on this rank"
    with pytest.raises(KeyError, match="this rank has no actors, so none is called 'trainers': spawn it first"):
        actors["trainers"]
    instances["trainers"] = ValueError()
    assert actors["trainers"] is instances["trainers"]
    assert list(actors) == ["trainers"]
    assert repr(actors) == "trainers: ValueError"
    with pytest.raises(KeyError, match="this rank has no actor 'data': its actors are trainers"):
        actors["data"]
