"""What a rank is to be: the record of it, and what its template is told."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_nb.allocator import facts
from monarch_nb.allocator.environment import rank_environment
from monarch_nb.allocator.state import Mesh
from monarch_nb.allocator.supervisor import new_token
from monarch_nb.config import NodePaths
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2
from monarch_nb.proto import worker_pb2 as wire


def start_directory(spec: pb.SpawnRequest, workspace: Path | None) -> Path:
    """Return where a mesh's ranks start: in their copy of the notebook's directory, if they have one."""
    return Path(spec.directory) if workspace is None else workspace / spec.directory


def plan_rank(
    paths: NodePaths, mesh: Mesh, rank: int, incarnation: int, workspace: Path | None
) -> tuple[state_pb2.RankRecord, wire.RankSpec]:
    """Return the record and the specification of a rank's process.

    Args:
        incarnation: how often the rank was restarted.
        workspace: the node's copy of the notebook's files, when it does not see the files themselves.
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
        directory=str(start_directory(spec, workspace)),
        workspace=str(workspace or ""),
        socket=str(paths.rank_socket(spec.mesh_id, rank, incarnation)),
        log_directory=str(paths.runs(spec.mesh_id)),
        blob_directory=str(paths.blobs(spec.mesh_id)),
        stacks_file=str(paths.stacks(spec.mesh_id, rank)),
    )
