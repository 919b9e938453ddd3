"""What a process is to be: the record of it, what its template is told, and its environment: torchrun's variables, the
leased GPUs, threads, and what makes defaults of training libraries mean the mesh."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.processes.supervisor import new_token
from monarch_nb.allocator.state.runs import Mesh, Run
from monarch_nb.config import RANK_TOKEN_VARIABLE, SHARED_VARIABLE
from monarch_nb.errors import UsageError
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.places import Place, nodes_of
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2
from monarch_nb.proto import worker_pb2 as wire

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_NOT_PASSED_ON = ("GRPC_", "JPY_", SHARED_VARIABLE)
"""JPY_PARENT_PID and its like are the kernel's that started the pool."""
_SIGNALS_TO_HANDLE = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""What torchrun says, of itself, when nobody asks it for others."""
_OF_A_RANK = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|GROUP_(RANK|WORLD_SIZE)|ROLE_(RANK|WORLD_SIZE|NAME)|TORCHELASTIC_\w+|PET_\w+"
)
"""With these Lightning would take a command's first process for a rank, and torchrun's flags would be another's."""


def place_in_mesh(spec: pb.SpawnRequest, rank: int) -> Place:
    """Return the place of a mesh's live rank."""
    nodes = max(1, spec.world_size // max(1, spec.ranks))
    return Place(rank, spec.world_size, rank - spec.first_rank, spec.ranks, spec.node_rank, nodes)


def place_of_node(spec: pb.SpawnRequest, ranks: Iterable[int]) -> Place:
    """Return the place of the first of a node's ranks, when each node that has one of `ranks` has all of them."""
    nodes = nodes_of(ranks, spec.ranks)
    here = nodes.index(spec.node_rank)
    return Place(here * spec.ranks, len(nodes) * spec.ranks, 0, spec.ranks, here, len(nodes))


@dataclass(frozen=True)
class Job:
    """What processes that work together have in common.

    Attributes:
        id: theirs alone.
        store_host, store_port: of their torch.distributed store.
        restarts, max_restarts: how often they were started again, and may be.
    """

    id: str
    store_host: str
    store_port: int
    restarts: int = 0
    max_restarts: int = 0


def rank_environment(
    base: Mapping[str, str],
    place: Place,
    job: Job,
    *,
    gpu_numbers: Sequence[int],
    token: str,
    cpu_count: int,
    interface: str,
    added: Mapping[str, str],
) -> dict[str, str]:
    """Return the whole environment of one rank.

    Args:
        base: the allocator's environment.
        gpu_numbers: of those that it is to use, as CUDA counts them there.
        token: what it and its descendants are known by.
        cpu_count: CPUs of the node, shared out among its ranks.
        interface: name of the one that Gloo and NCCL, which ask nobody who he is, listen on.
        added: what the user said.
    """
    environment = {name: value for name, value in base.items() if not name.startswith(_NOT_PASSED_ON)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count // place.local_world_size)))
    defaults = _library_defaults(place, has_gpus=bool(gpu_numbers))
    for name, value in defaults.items():
        environment.setdefault(name, value)
    environment |= {
        **place.variables,
        "ROLE_NAME": "default",
        "MASTER_ADDR": job.store_host,
        "MASTER_PORT": str(job.store_port),
        "TORCHELASTIC_RUN_ID": job.id,
        "TORCHELASTIC_RESTART_COUNT": str(job.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        # A script that a rank starts finds the store instead of hosting its own.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_numbers)),
        RANK_TOKEN_VARIABLE: token,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
    }
    environment.update(added)
    return environment


def node_environment(environment: Mapping[str, str], place: Place, python: str) -> dict[str, str]:
    """Return the environment of a command that a node is to run once, such as torchrun: who else runs it, as torchrun
    and Lightning read it, and nothing of a rank.

    Args:
        environment: of the node's first rank.
        python: of the ranks; what is installed beside it is found first.
    """
    kept = {name: value for name, value in environment.items() if not _OF_A_RANK.fullmatch(name)}
    kept["PATH"] = os.pathsep.join(filter(None, (os.path.dirname(python), kept.get("PATH", os.defpath))))
    kept.setdefault("PYTHONUNBUFFERED", "1")  # its output is a file, which is followed
    own = {
        "NODE_RANK": str(place.node_rank),
        "NNODES": str(place.nodes),
        "NPROC_PER_NODE": str(place.local_world_size),
        "MASTER_ADDR": environment["MASTER_ADDR"],
        "MASTER_PORT": environment["MASTER_PORT"],
    }
    return {**kept, **own, **{f"PET_{name}": value for name, value in own.items()}}


def _library_defaults(place: Place, *, has_gpus: bool) -> dict[str, str]:
    """Return what libraries need to train on all ranks, where they would train a model on each, and to draw live.

    Only what gives way to arguments: LT_* of Lightning's `Fabric` are the command line's, and override or refuse them.
    """
    defaults = place.trainer_defaults
    defaults["TTY_COMPATIBLE"] = "1"  # the cell draws cursor codes: else rich's bars are silent to their end
    if not has_gpus:
        defaults["ACCELERATE_USE_CPU"] = "true"  # else accelerate and transformers look for GPUs only
    return defaults


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


def plan_rank(node: Node, mesh: Mesh, rank: int, incarnation: int, workspace: Path | None) -> Plan:
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
    environment = _environment(
        node, place_in_mesh(spec, rank), job, record.token, gpus_of(mesh, mesh.ranks), spec.environment
    )
    return record, _specification(node, spec, record, environment, start_directory(spec, workspace), workspace)


def plan_script(node: Node, mesh: Mesh, run: Run, rank: int, workspace: Path | None) -> Plan:
    """Return the same of the process that a script has on a rank's slot."""
    spec, script = mesh.spec, run.submit.run.script
    gpu_indices = gpus_of(mesh, mesh.ranks if script.shell else run.ranks)
    record = state_pb2.RankRecord(
        mesh_id=run.run_id, rank=rank, gpu_indices=gpu_indices, token=new_token(), script_of=spec.mesh_id
    )
    job = Job(run.run_id, script.store_host, script.store_port, script.attempt, script.max_restarts)
    ranks = mesh.all_ranks(run.submit)
    place = place_of_node(spec, ranks) if script.shell else Place.among(rank, ranks, spec.ranks)
    error_file = str(node.paths.error_file(spec.mesh_id, rank, run.run_id))
    own = {"TORCHELASTIC_ERROR_FILE": error_file, "TORCHELASTIC_SIGNALS_TO_HANDLE": _SIGNALS_TO_HANDLE}
    added = {**own, **spec.environment, **script.environment}
    environment = _environment(node, place, job, record.token, gpu_indices, added)
    if script.shell:
        environment = node_environment(environment, place, spec.python or node.identity.python) | {**script.environment}
    else:
        environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    start = Path(script.directory) if script.directory else start_directory(spec, workspace)
    return record, _specification(node, spec, record, environment, start, workspace)


def gpus_of(mesh: Mesh, ranks: Iterable[int]) -> list[int]:
    """Return the GPUs that each process of a world sees on this node: those of all, as with torchrun, whose processes
    take theirs by LOCAL_RANK."""
    return list(dict.fromkeys(gpu for rank in sorted(ranks) for gpu in mesh.ranks[rank].gpu_indices))


def _environment(
    node: Node, place: Place, job: Job, token: str, gpu_numbers: Sequence[int], added: Mapping[str, str]
) -> dict[str, str]:
    cpus, interface = usable_cpus(), node.identity.interface
    known = os.environ, place, job
    return rank_environment(
        *known, gpu_numbers=gpu_numbers, token=token, cpu_count=cpus, interface=interface, added=added
    )


def _specification(
    node: Node,
    spec: pb.SpawnRequest,
    record: state_pb2.RankRecord,
    environment: dict[str, str],
    start: Path,
    workspace: Path | None,
) -> wire.RankSpec:
    paths, script = node.paths, record.mesh_id if record.script_of else ""
    return wire.RankSpec(
        mesh_id=spec.mesh_id,
        rank=record.rank,
        environment=environment,
        directory=str(start),
        workspace=str(workspace or ""),
        socket=str(paths.rank_socket(record.mesh_id, record.rank, record.incarnation)),
        log_directory=str(paths.runs(spec.mesh_id)),
        blob_directory=str(paths.blobs(spec.mesh_id)),
        stacks_file=str(paths.stacks(spec.mesh_id, record.rank, script)),
        for_script=bool(script),
        node=node.identity.address,
        process=f"{record.mesh_id}/{record.rank}",
        mail_directory=str(paths.mail_of(spec.mesh_id)),
        store_note=str(paths.store_note(spec.mesh_id)),
        python=spec.python,
    )
