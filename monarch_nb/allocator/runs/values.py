"""Values of runs that are too large for a message: kept as blobs until the client has them."""

from __future__ import annotations

from pathlib import Path

from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import NodePaths
from monarch_nb.errors import UsageError

KEPT_BUNDLE_BYTES = 4_000
"""A collected result that is no larger is still there to be shown once more."""


class Values:
    """The values of a node's runs."""

    def __init__(self, paths: NodePaths, state: NodeState, records: Records) -> None:
        self._paths, self._state, self._records = paths, state, records

    def blob_path(self, mesh_id: str, blob: str) -> Path:
        """Return a blob's path; its name must be one plain file name."""
        self._state.mesh(mesh_id)
        if not blob or blob != Path(blob).name or blob.startswith("."):
            raise UsageError(f"bad blob name {blob!r}")
        return self._paths.blobs(mesh_id) / blob

    def collected(self, run_id: str) -> None:
        """The client has the results of a run: its values need not be kept."""
        if mesh_id := self._state.collected(run_id):
            run = self._state.meshes[mesh_id].runs[run_id]
            if run.finished and run.submit.run.HasField("push"):  # the ranks have mapped it
                self.blob_path(mesh_id, run.submit.run.push.blob).unlink(missing_ok=True)
            for result in run.results.values():
                if result.HasField("value_blob"):
                    self.blob_path(mesh_id, result.value_blob).unlink(missing_ok=True)
                result.ClearField("value")
                if len(result.bundle_json) > KEPT_BUNDLE_BYTES:
                    result.ClearField("bundle_json")
            self._records.run_changed(mesh_id, run_id)
            self._records.flush_soon()
