"""Which mesh of a reservation a command is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb.config import MAIN_MESH

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation


def mesh_of(reservation: Reservation, name: str) -> Mesh:
    """Return a mesh of a reservation, or raise NoSuchMesh. The main one is known, and asks no node."""
    return reservation.mesh if name == MAIN_MESH else reservation.meshes[name]
