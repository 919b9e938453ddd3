"""What a rank is to be: the record of it, and what its template is told."""

from __future__ import annotations

import os

from monarch_nb.allocator import facts
from monarch_nb.allocator.environment import rank_environment
from monarch_nb.allocator.state import Mesh
from monarch_nb.allocator.supervisor import new_token
from monarch_nb.config import NodePaths
from monarch_nb.proto import state_pb2
from monarch_nb.proto import worker_pb2 as wire


def plan_rank(paths: NodePaths, mesh: Mesh, rank: int, incarnation: int) -> tuple[state_pb2.RankRecord, wire.RankSpec]:
    """Return the record and the specification of a rank's process.

    Args:
        incarnation: how often the rank was restarted.
    """
    spec, gpu_indices = mesh.spec, mesh.ranks[rank].gpu_indices
    record = state_pb2.RankRecord(
        mesh_id=spec.mesh_id, rank=rank, incarnation=incarnation, gpu_indices=gpu_indices, token=new_token()
    )
    environment = rank_environment(
        os.environ,
        spec,
        rank,
        gpu_indices=gpu_indices,
        incarnation=incarnation,
        token=record.token,
        cpu_count=facts.cpu_slots(),
    )
    return record, wire.RankSpec(
        mesh_id=spec.mesh_id,
        rank=rank,
        environment=environment,
        directory=spec.directory,
        socket=str(paths.rank_socket(spec.mesh_id, rank, incarnation)),
        log_directory=str(paths.runs(spec.mesh_id)),
        blob_directory=str(paths.blobs(spec.mesh_id)),
        stacks_file=str(paths.stacks(spec.mesh_id, rank)),
    )
