"""What the meshes of a reservation need of it."""

from __future__ import annotations

from typing import Protocol

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.pool import HeldReservation
from monarch_nb.client.runs.needs import Holder


class Holding(Holder, Protocol):
    """A reservation, as its meshes know it."""

    @property
    def mesh(self) -> Mesh: ...

    async def held(self, *, memory: bool = False) -> HeldReservation: ...
