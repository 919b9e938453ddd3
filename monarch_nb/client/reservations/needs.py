"""What the meshes of a reservation need of it."""

from __future__ import annotations

from typing import Protocol

from monarch_nb.client.meshes.holder import MeshHolder
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.facts.held import HeldReservation


class Holding(MeshHolder[Mesh], Protocol):
    """A reservation, as its meshes know it."""

    async def held(self, *, memory: bool = False) -> HeldReservation: ...
