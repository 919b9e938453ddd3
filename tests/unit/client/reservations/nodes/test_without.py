"""How a reservation goes on without some nodes: what is advised works."""

from __future__ import annotations

import re

import pytest

from monarch_nb.client.reservations.nodes.growing import mesh_to_shrink
from monarch_nb.client.reservations.nodes.without import way_without
from unit.client.reservations.nodes.held import held


@pytest.mark.parametrize(
    ("meshes", "leaving", "way"),
    [
        ({"main": [0, 1, 2]}, [2], "%mesh shrink dev --node host3 --into main"),
        ({"main": [0, 1], "grown": [0, 1, 2]}, [2], "%mesh shrink dev --node host3 --into grown"),
        ({"main": [0], "a": [0, 1, 2]}, [1, 2], "%mesh shrink dev --node host2 --node host3 --into a"),
        ({"main": [0, 1], "b": [2], "a": [0, 1, 2]}, [2], "%mesh stop b, then %mesh shrink dev --node host3 --into a"),
        ({"main": [0, 1, 2]}, [0, 1, 2], ""),
    ],
)
def test_what_is_advised_works(meshes: dict[str, list[int]], leaving: list[int], way: str) -> None:
    assert way_without(held(3, meshes), leaving) == way
    if way:
        stopped = re.findall(r"%mesh stop (\w+)", way)
        left = held(3, {name: places for name, places in meshes.items() if name not in stopped})
        into = "".join(re.findall(r"--into (\w+)", way))
        smaller = mesh_to_shrink(left, leaving, into)
        assert (smaller.spec.name if smaller else "") == into
