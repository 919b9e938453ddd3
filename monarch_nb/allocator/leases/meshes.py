"""The end of a mesh on its node: whoever waits for it is told, and nothing of it stays but what it printed."""

from __future__ import annotations

import contextlib
from pathlib import Path

from monarch_nb.allocator.files.removal import Removal
from monarch_nb.allocator.logs.kept import KeptLogs
from monarch_nb.allocator.mail.mail import Mail
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.sessions.audience import Audience
from monarch_nb.allocator.state.limits import released
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision.supervisor import Supervisor
from monarch_nb.config import NodePaths
from monarch_nb.errors import MeshNotFound
from monarch_nb.rpc.status import error_to_json

RELEASED = "the mesh was released while the run went on"
GONE = "its mesh was released or stopped while the message was under way"


class Meshes:
    """Closes and removes the meshes of a node."""

    def __init__(
        self,
        paths: NodePaths,
        state: NodeState,
        records: Records,
        supervisor: Supervisor,
        audience: Audience,
        mail: Mail,
        removal: Removal,
        kept_logs: KeptLogs,
    ) -> None:
        self._paths, self._state, self._records = paths, state, records
        self._supervisor, self._audience, self._mail = supervisor, audience, mail
        self._removal, self._kept_logs = removal, kept_logs

    def close(self, mesh_id: str, why: str = RELEASED) -> None:
        """From now on the mesh is not known; whoever waits for a run of it is told why."""
        if mesh := self._state.meshes.pop(mesh_id, None):
            ended = self._state.ended.get(mesh.spec.reservation_id)
            gone = error_to_json(released(ended) if ended else MeshNotFound(why))
            for run in mesh.runs.values():
                self._audience.dismiss(run, gone)
            if lease := self._state.leases.get(mesh.spec.reservation_id):
                self._kept_logs.note(mesh, lease.request)
        self._records.close_mesh(mesh_id)
        self._mail.mesh_is_gone(mesh_id, GONE)

    async def remove(self, mesh_id: str) -> None:
        """End a mesh's store, and forget the mesh, whose ranks have ended."""
        await self._supervisor.end_store(mesh_id)
        self._records.delete_mesh(mesh_id)
        self._remove_files(self._paths.mesh(mesh_id))

    def _remove_files(self, directory: Path) -> None:
        self._kept_logs.keep(directory)
        self._removal.remove(directory)

    def remove_unknown(self) -> None:
        """An allocator was killed while it spawned or released them."""
        self._removal.resume()
        with contextlib.suppress(FileNotFoundError):
            for directory in self._paths.meshes.iterdir():
                if directory.name not in self._records.meshes:
                    self._remove_files(directory)
