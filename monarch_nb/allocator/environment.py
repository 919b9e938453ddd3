"""The environment of a rank: torchrun's variables, the leased GPUs, threads, what makes defaults of training libraries
mean the mesh; and which pythons are the same."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_nb.config import RANK_TOKEN_VARIABLE, SHARED_VARIABLE
from monarch_nb.proto import allocator_pb2 as pb

_LOOPBACK = "127.0.0.1"
_NOT_PASSED_ON = ("GRPC_", "JPY_", SHARED_VARIABLE)
"""JPY_PARENT_PID and its like are the kernel's that started the pool."""


def rank_environment(
    base: Mapping[str, str],
    spec: pb.SpawnRequest,
    rank: int,
    *,
    gpu_indices: Sequence[int],
    incarnation: int,
    token: str,
    cpu_count: int,
) -> dict[str, str]:
    """Return the whole environment of one rank.

    Args:
        base: the allocator's environment.
        incarnation: how often the rank was restarted.
        cpu_count: CPUs of the node, shared out among its ranks.
    """
    local_rank = rank - spec.first_rank
    nodes = max(1, spec.world_size // max(1, spec.ranks))
    environment = {name: value for name, value in base.items() if not name.startswith(_NOT_PASSED_ON)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count // spec.ranks)))
    for name, value in _library_defaults(spec.ranks, nodes, has_gpus=bool(gpu_indices)).items():
        environment.setdefault(name, value)
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(spec.ranks),
        "GROUP_RANK": str(spec.node_rank),
        "GROUP_WORLD_SIZE": str(nodes),
        "NODE_RANK": str(spec.node_rank),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "MASTER_ADDR": spec.master_host,
        "MASTER_PORT": str(spec.master_port),
        "TORCHELASTIC_RUN_ID": spec.mesh_id,
        "TORCHELASTIC_RESTART_COUNT": str(incarnation),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # A script that a rank starts finds the mesh's store instead of hosting its own.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_indices)),
        RANK_TOKEN_VARIABLE: token,
    }
    if spec.master_host == _LOOPBACK:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment.update(spec.environment)
    return environment


def _library_defaults(ranks: int, nodes: int, *, has_gpus: bool) -> dict[str, str]:
    """Return what libraries need to train on all ranks where they would train a model on each, and say nothing.

    Only what gives way to arguments: LT_* of Lightning's `Fabric` are the command line's, and override or refuse them.

    Args:
        ranks: on each node.
    """
    defaults = {"PL_TRAINER_DEVICES": str(ranks), "PL_TRAINER_NUM_NODES": str(nodes)}  # else: one CPU, one node
    if not has_gpus:
        defaults["ACCELERATE_USE_CPU"] = "true"  # else accelerate and transformers look for GPUs only
    return defaults


def python_identity(python: str) -> tuple[str, ...]:
    """Return what is equal for two paths of the same python.

    A kernel is often started as `python`, a command as `python3.11`: in one directory (an environment knows its
    packages by it) the links to one executable are the same python.
    """
    path = Path(python)
    return (str(path.parent.resolve()), str(path.resolve())) if path.exists() else (python,)
