"""Reservations with meshes on some of their nodes, as nodes tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.proto import allocator_pb2 as pb


def held(nodes: int, meshes: dict[str, list[int]], absent: Sequence[int] = ()) -> HeldReservation:
    """What there is: two ranks in each of the places of each mesh."""
    there: dict[int, Any] = {}
    for place in range(nodes):
        status = pb.ReservationStatus(name="dev", nodes=nodes, procs=2)
        for name, places in meshes.items():
            if place in places:
                number, hosts = places.index(place), len(places)
                spec = pb.SpawnRequest(mesh_id=name, name=name, ranks=2, node_rank=number, world_size=2 * hosts)
                spec.first_rank = 2 * number
                spec.environment["OF"] = name
                spec.extent.extend([pb.Axis(name="hosts", size=hosts), pb.Axis(name="procs", size=2)])
                status.meshes.add(mesh_id=name, name=name, spec=spec)
        there[place] = SimpleNamespace(name=f"host{place + 1}"), status
    away = {place: there.pop(place)[0] for place in absent}
    return HeldReservation("r", there, absent=away)
