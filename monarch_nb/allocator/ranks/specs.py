"""What a rank is to be: the record of it, and what its template is told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from monarch_nb.allocator.ranks.environment import Job, node_environment, place_in_mesh, place_of_node, rank_environment
from monarch_nb.allocator.state.identity import Identity
from monarch_nb.allocator.state.runs import Mesh, Run
from monarch_nb.allocator.supervision.supervisor import new_token
from monarch_nb.config import NodePaths
from monarch_nb.errors import UsageError
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.places import Place
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2
from monarch_nb.proto import worker_pb2 as wire


def start_directory(spec: pb.SpawnRequest, workspace: Path | None) -> Path:
    """Return where a mesh's ranks start: in their copy of the notebook's directory, if they have one.

    Raises:
        UsageError: it would be outside of the copy.
    """
    if workspace is None:
        return Path(spec.directory)
    start = Path(os.path.normpath(workspace / spec.directory))
    if not start.is_relative_to(workspace):
        raise UsageError(f"{spec.directory} is outside of the copy of the notebook's files, where ranks start")
    return start


Plan = tuple[state_pb2.RankRecord, wire.RankSpec]


def plan_rank(
    paths: NodePaths,
    node: Identity,
    mesh: Mesh,
    rank: int,
    incarnation: int,
    workspace: Path | None,
) -> Plan:
    """Return the record and the specification of a rank's process.

    Args:
        incarnation: how often the rank was restarted.
        workspace: the node's copy of the notebook's files, when it does not see the files themselves.
    """
    spec, gpu_indices = mesh.spec, mesh.ranks[rank].gpu_indices
    record = state_pb2.RankRecord(
        mesh_id=spec.mesh_id, rank=rank, incarnation=incarnation, gpu_indices=gpu_indices, token=new_token()
    )
    job = Job(spec.mesh_id, spec.master_host, spec.master_port)  # the same for all, also for those that were restarted
    place = place_in_mesh(spec, rank)
    seen = gpus_of(mesh, mesh.ranks)
    start = str(start_directory(spec, workspace))
    return record, _specification(paths, node, spec, record, place, job, start, workspace, seen, spec.environment)


def plan_script(
    paths: NodePaths,
    node: Identity,
    mesh: Mesh,
    run: Run,
    rank: int,
    workspace: Path | None,
) -> Plan:
    """Return the same of the process that a script has on a rank's slot."""
    spec, script = mesh.spec, run.submit.run.script
    gpu_indices = gpus_of(mesh, mesh.ranks if script.shell else run.ranks)
    record = state_pb2.RankRecord(
        mesh_id=run.run_id, rank=rank, gpu_indices=gpu_indices, token=new_token(), script_of=spec.mesh_id
    )
    job = Job(run.run_id, script.store_host, script.store_port, script.attempt, script.max_restarts)
    ranks = mesh.all_ranks(run.submit)
    place = place_of_node(spec, ranks) if script.shell else Place.among(rank, ranks, spec.ranks)
    error_file = str(paths.error_file(spec.mesh_id, rank, run.run_id))
    added = {"TORCHELASTIC_ERROR_FILE": error_file, **spec.environment, **script.environment}
    start = script.directory or str(start_directory(spec, workspace))
    whole = _specification(paths, node, spec, record, place, job, start, workspace, gpu_indices, added)
    if script.shell:
        environment = node_environment(whole.environment, place, spec.python or node.python)
        whole.environment.clear()
        whole.environment.update({**environment, **script.environment})
    return record, whole


def gpus_of(mesh: Mesh, ranks: Iterable[int]) -> list[int]:
    """Return the GPUs that each process of a world sees on this node: those of all, as with torchrun, whose processes
    take theirs by LOCAL_RANK."""
    return list(dict.fromkeys(gpu for rank in sorted(ranks) for gpu in mesh.ranks[rank].gpu_indices))


def _specification(
    paths: NodePaths,
    node: Identity,
    spec: pb.SpawnRequest,
    record: state_pb2.RankRecord,
    place: Place,
    job: Job,
    start: str,
    workspace: Path | None,
    gpu_numbers: Sequence[int],
    added: Mapping[str, str],
) -> wire.RankSpec:
    script = record.mesh_id if record.script_of else ""
    environment = rank_environment(
        os.environ,
        place,
        job,
        gpu_numbers=gpu_numbers,
        token=record.token,
        cpu_count=usable_cpus(),
        interface=node.interface,
        added=added,
    )
    return wire.RankSpec(
        mesh_id=spec.mesh_id,
        rank=record.rank,
        environment=environment,
        directory=start,
        workspace=str(workspace or ""),
        socket=str(paths.rank_socket(record.mesh_id, record.rank, record.incarnation)),
        log_directory=str(paths.runs(spec.mesh_id)),
        blob_directory=str(paths.blobs(spec.mesh_id)),
        stacks_file=str(paths.stacks(spec.mesh_id, record.rank, script)),
        for_script=bool(script),
        node=node.address,
        process=f"{record.mesh_id}/{record.rank}",
        mail_directory=str(paths.mail_of(spec.mesh_id)),
        store_note=str(paths.store_note(spec.mesh_id)),
        python=spec.python,
    )
