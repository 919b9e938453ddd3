"""Who may do what on a node whose ranks are in rooms: by the same table as elsewhere. The gateway knows whose each mesh
is; what is asked of a run, the room checks by the same table again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from monarch_nb.allocator.serving.access import Access
from monarch_nb.allocator.state.rights import Right
from monarch_nb.errors import NodeUnreachable
from monarch_nb.rpc.callers import Caller

NOT_YET = "this node was started again, and a room on it has not said yet which meshes it has: try again in a moment"


class GatewayAccess(Access):
    """Answers for a gateway; arguments as of Access, but for two.

    Args:
        meshes, resuming: as of Rooms.
    """

    def __init__(self, meshes: Mapping[str, str], resuming: Collection[str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._meshes, self._resuming = meshes, resuming

    def need_mesh(self, caller: Caller, mesh_id: str, right: Right, doing: str) -> None:
        if mesh_id not in self._meshes and self._resuming:
            raise NodeUnreachable(NOT_YET)
        super().need_mesh(caller, mesh_id, right, doing)

    def reservation_of(self, mesh_id: str) -> str:
        return self._meshes.get(mesh_id, "")
