"""The newest run's number of each mesh, which no later allocator may give again."""

from __future__ import annotations

import contextlib
import os

from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.config import NUMBERS_TO_SPARE, NodePaths


class RunNumbers:
    """The newest run's number of each mesh, written down before anybody is told of it: no number is given twice.

    A file of each mesh is overwritten in place, which takes 4 µs and no room on the disk; the database, to which runs
    are written a few at once, may not have the newest.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths
        self._files: dict[str, int] = {}

    def note(self, mesh_id: str, number: int) -> None:
        """Note the newest number; when that can not be done, that it is not known."""
        try:
            if mesh_id not in self._files:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._files[mesh_id] = os.open(self._paths.newest_run(mesh_id), flags, 0o600)
            os.pwrite(self._files[mesh_id], b"%020d" % number, 0)
        except OSError:
            with contextlib.suppress(OSError):
                self._paths.newest_run(mesh_id).unlink()
            self.forget(mesh_id)

    def newest(self, mesh: Mesh) -> int:
        """Return the newest number that the allocator before this one gave, or a higher one."""
        mesh_id = mesh.spec.mesh_id
        known = max([*mesh.numbers, *stored_outputs(self._paths.runs(mesh_id))], default=0)
        try:
            return max(known, int(self._paths.newest_run(mesh_id).read_bytes()))
        except (OSError, ValueError):
            return known + NUMBERS_TO_SPARE

    def forget(self, mesh_id: str) -> None:
        """The mesh is gone."""
        with contextlib.suppress(KeyError):
            os.close(self._files.pop(mesh_id))

    def close(self) -> None:
        """Write no more."""
        for mesh_id in list(self._files):
            self.forget(mesh_id)
