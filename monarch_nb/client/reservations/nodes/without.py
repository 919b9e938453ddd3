"""How a reservation goes on without some of its nodes, as people type it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.config import MAIN_MESH


def way_without(held: HeldReservation, leaving: Collection[int]) -> str:
    """Return what gives some nodes back, with what is to be done before: of the meshes that have ranks there one can
    start anew on those that are left, and others are stopped. Empty when no node would be left.

    Args:
        leaving: the numbers of the nodes.
    """
    if not held.connections.keys() - set(leaving):
        return ""
    concerned = {
        mesh.spec.name: mesh for mesh in held.meshes.values() if not set(leaving).isdisjoint(mesh.places.values())
    }
    on_all = [name for name, mesh in concerned.items() if mesh.hosts == held.facts.nodes]
    anew = MAIN_MESH if MAIN_MESH in concerned else next(iter([*on_all, *concerned]), "")
    nodes = "".join(f" --node {held.connections[place].name}" for place in sorted(leaving))
    shrink = f"%mesh shrink {held.facts.name}{nodes}{f' --into {anew}' if anew else ''}"
    return ", then ".join([*(f"%mesh stop {name}" for name in sorted(concerned.keys() - {anew})), shrink])
