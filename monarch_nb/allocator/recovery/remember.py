"""What a restarted allocator knows: the state as the one before it has written it down."""

from __future__ import annotations

import contextlib
import os

from monarch_nb.allocator.logs.output import stored_outputs
from monarch_nb.allocator.recovery.database import Database
from monarch_nb.allocator.state.limits import Limits
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.allocator.supervision.processes import boot_id, seconds_since_boot
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

NUMBERS_TO_SPARE = 1000
"""Left out when nobody knows which number was the newest."""


def read_state(database: Database, state: NodeState, mesh_records: dict[str, state_pb2.MeshRecord]) -> None:
    """Fill an empty state, and the records of the meshes of which this node has ranks or the store."""
    now_s = seconds_since_boot()
    for key, lease in database.read("lease", state_pb2.LeaseRecord):
        limits = Limits.from_record(lease.limits, boot_id(), now_s, confirmed=lease.confirmed)
        gpus, nodes = list(lease.gpu_indices), list(lease.nodes)
        state.leases[key] = Lease(lease.request, gpus, lease.confirmed, limits, nodes, lease.files)
    ended = [record for _, record in database.read("ended", pb.Ended)]
    state.ended = {record.reservation_id: record for record in sorted(ended, key=lambda one: one.ended_at)}
    for key, record in database.read("mesh", state_pb2.MeshRecord):
        mesh_records[key] = record
        if record.spec.ranks:  # else its ranks were never started
            state.meshes[key] = Mesh(record.spec)
    for _, rank in database.read("rank", state_pb2.RankRecord):
        death = rank.death if rank.HasField("death") else None
        if mesh_of_rank := state.meshes.get(rank.mesh_id):
            mesh_of_rank.ranks[rank.rank] = RankSlot(list(rank.gpu_indices), death)
    runs = [run for _, run in database.read("run", state_pb2.RunRecord)]
    for run in sorted(runs, key=lambda run: run.submit.run.number):
        if mesh_of_run := state.meshes.get(run.submit.mesh_id):
            mesh_of_run.add_run(Run.from_record(run))


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
