"""Who may do what on a node whose ranks are in rooms: by the same table as elsewhere. The gateway knows whose each mesh
is; what is asked of a run, the room checks by the same table again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_nb.allocator.serving.access import Access


class GatewayAccess(Access):
    """Answers for a gateway; arguments as of Access, but for one.

    Args:
        meshes: by id, the reservations that they are of.
    """

    def __init__(self, meshes: Mapping[str, str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._meshes = meshes

    def reservation_of(self, mesh_id: str) -> str:
        return self._meshes.get(mesh_id, "")
