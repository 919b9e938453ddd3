"""What a restarted allocator knows: the state as the one before it has written it down."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.allocator.recovery.database import Database
from monarch_nb.allocator.state.limits import Limits
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.allocator.supervision.processes import boot_id, seconds_since_boot
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2


def read_state(
    database: Database,
    accepted: Iterable[state_pb2.RunRecord],
    state: NodeState,
    mesh_records: dict[str, state_pb2.MeshRecord],
) -> None:
    """Fill an empty state, and the records of the meshes of which this node has ranks or the store.

    Args:
        accepted: runs that may not be in the database yet.
    """
    now_s = seconds_since_boot()
    for key, lease in database.read("lease", state_pb2.LeaseRecord):
        limits = Limits.from_record(lease.limits, boot_id(), now_s, confirmed=lease.confirmed)
        gpus, nodes = list(lease.gpu_indices), list(lease.nodes)
        shares = dict(lease.shares)
        kept = lease.request, gpus, lease.confirmed, limits, nodes, lease.files, shares, lease.revision
        state.leases[key] = Lease(*kept)
    ended = [record for _, record in database.read("ended", pb.Ended)]
    state.ended = {record.reservation_id: record for record in sorted(ended, key=lambda one: one.ended_at)}
    for key, record in database.read("mesh", state_pb2.MeshRecord):
        mesh_records[key] = record
        if record.spec.ranks:  # else its ranks were never started
            spec = pb.SpawnRequest()
            spec.CopyFrom(record.spec)  # what the mesh is to become may differ
            state.meshes[key] = Mesh(spec)
    for _, rank in database.read("rank", state_pb2.RankRecord):
        death = rank.death if rank.HasField("death") else None
        if mesh_of_rank := state.meshes.get(rank.mesh_id):
            mesh_of_rank.ranks[rank.rank] = RankSlot(list(rank.gpu_indices), death)
    runs = {run.submit.run.run_id: run for run in accepted}
    runs.update((run.submit.run.run_id, run) for _, run in database.read("run", state_pb2.RunRecord))
    for run in sorted(runs.values(), key=lambda run: run.submit.run.number):
        if mesh_of_run := state.meshes.get(run.submit.mesh_id):
            mesh_of_run.add_run(Run.from_record(run))
