"""How a reservation goes on without some nodes: what is advised works."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.reservations.nodes.growing import mesh_to_shrink
from monarch_nb.client.reservations.nodes.without import way_without
from monarch_nb.proto import allocator_pb2 as pb


def held(nodes: int, meshes: dict[str, list[int]]) -> HeldReservation:
    """What there is: a rank in each of the places of each mesh."""
    there: dict[int, Any] = {}
    for place in range(nodes):
        status = pb.ReservationStatus(name="dev", nodes=nodes, procs=1)
        for name, places in meshes.items():
            if place in places:
                number, hosts = places.index(place), len(places)
                spec = pb.SpawnRequest(mesh_id=name, name=name, ranks=1, node_rank=number, world_size=hosts)
                status.meshes.add(mesh_id=name, name=name, spec=spec)
        there[place] = SimpleNamespace(name=f"n{place}"), status
    return HeldReservation("r", there)


@pytest.mark.parametrize(
    ("meshes", "leaving", "way"),
    [
        ({"main": [0, 1, 2]}, [2], "%mesh shrink dev --node n2 --into main"),
        ({"main": [0, 1]}, [2], "%mesh shrink dev --node n2"),
        ({"main": [0, 1], "grown": [0, 1, 2]}, [2], "%mesh shrink dev --node n2 --into grown"),
        ({"main": [0], "a": [0, 1, 2]}, [1, 2], "%mesh shrink dev --node n1 --node n2 --into a"),
        ({"main": [0, 1], "b": [2], "a": [0, 1, 2]}, [2], "%mesh stop b, then %mesh shrink dev --node n2 --into a"),
        (
            {"main": [0, 1, 2], "grown": [0, 1, 2]},
            [2],
            "%mesh stop grown, then %mesh shrink dev --node n2 --into main",
        ),
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
