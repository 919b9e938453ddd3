"""The environment of a rank: torchrun's variables, the leased GPUs, threads, and what makes defaults of training
libraries mean the mesh."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.config import RANK_TOKEN_VARIABLE, SHARED_VARIABLE
from monarch_nb.ground.places import Place, nodes_of
from monarch_nb.proto import allocator_pb2 as pb

_NOT_PASSED_ON = ("GRPC_", "JPY_", SHARED_VARIABLE)
"""JPY_PARENT_PID and its like are the kernel's that started the pool."""
_OF_A_RANK = re.compile(r"(LOCAL_)?(RANK|WORLD_SIZE)|GROUP_(RANK|WORLD_SIZE)|ROLE_\w+|TORCHELASTIC_\w+|PET_\w+")
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
