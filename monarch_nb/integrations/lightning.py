"""Lightning on a mesh: `Trainer()` and `Fabric()` train on all ranks, inside a Slurm or LSF allocation too.

Lightning has no entry point for cluster environments, so what it asks is changed once it is imported in a rank, by
whichever of its names (`lightning`, `pytorch_lightning`, `lightning_fabric`).
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.errors import MeshMismatch
from monarch_nb.ground.rank_sets import name_ranks

_slice: Sequence[int] = ()
"""The ranks that the present cell runs on, where these are not all."""


def begin_run(ranks: Sequence[int]) -> None:
    """Another cell begins.

    Args:
        ranks: those that it runs on; empty for all of the mesh.
    """
    global _slice
    _slice = ranks


class MeshEnvironment:
    """The mesh as Lightning's `ClusterEnvironment`. On ranks Lightning picks it by itself.

    Example:
        trainer = Trainer(plugins=[MeshEnvironment()])  # the same as Trainer()
    """

    creates_processes_externally = True

    @staticmethod
    def detect() -> bool:
        """Whether this process is a rank."""
        return RANK_TOKEN_VARIABLE in os.environ

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    def world_size(self) -> int:
        return _number("WORLD_SIZE")

    def global_rank(self) -> int:
        return _number("RANK")

    def local_rank(self) -> int:
        return _number("LOCAL_RANK")

    def node_rank(self) -> int:
        return _number("NODE_RANK")

    def set_global_rank(self, rank: int) -> None:
        """Ranks are what they are."""

    def set_world_size(self, size: int) -> None:
        """Called with devices × num_nodes when a strategy is made.

        Raises:
            MeshMismatch: the mesh is of another size, or the cell runs on a part of it.
        """
        if _slice:
            raise MeshMismatch(
                f"this cell runs on {name_ranks(_slice)}, and Lightning trains on all {self.world_size()} of the mesh: "
                "run the cell on all, or a script on these (%mesh run -t …)"
            )
        if size != self.world_size():
            raise MeshMismatch(f"{_held()}, but devices × num_nodes is {size}: {_advice()}")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Called when training begins.

        Raises:
            MeshMismatch: the mesh is of another shape.
        """
        if (num_devices, num_nodes) != (_number("LOCAL_WORLD_SIZE"), _nodes()):
            raise MeshMismatch(f"{_held()}, but devices={num_devices} and num_nodes={num_nodes}: {_advice()}")

    def teardown(self) -> None:
        """Nothing was set up: the process group stays, so that the next fit begins at once."""


def become_rank() -> None:
    """In a rank that was forked after Lightning was imported: only rank 0 logs and says things."""
    for name in ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints"):
        if module := sys.modules.get(name):
            module.rank_zero_only.rank = _number("RANK")


def _choose_mesh(connector: Any) -> None:
    """Of the environments that a connector looks for torchrun's is the first."""
    connector.ClusterEnvironment.register(MeshEnvironment)
    connector.TorchElasticEnvironment = MeshEnvironment


def _count_processors(accelerators: Any) -> None:
    """Where processors are not counted, `devices="auto"` is 1: here it is the node's ranks."""
    accelerators.CPUAccelerator.auto_device_count = staticmethod(functools.partial(_number, "LOCAL_WORLD_SIZE"))


def _start_nothing(strategies: Any) -> None:
    """The processes are there: `strategy="ddp_notebook"` and its like mean what "ddp" does."""
    strategies.DDPStrategy._start_method = property(lambda _: "popen", lambda *_: None)


def _count_nodes(fabric: Any) -> None:
    """`Fabric()` is on all nodes, as `Trainer()` is by PL_TRAINER_NUM_NODES."""
    init: Callable[..., None] = fabric.Fabric.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        if "LT_NUM_NODES" not in os.environ:
            bound.arguments.setdefault("num_nodes", _nodes())
        init(*bound.args, **bound.kwargs)

    fabric.Fabric.__init__ = __init__
    fabric.Fabric._get_distributed_sampler = staticmethod(_seeded_alike(fabric.Fabric._get_distributed_sampler))


def _shuffle_alike(connector: Any) -> None:
    connector._get_distributed_sampler = _seeded_alike(connector._get_distributed_sampler)


def _seeded_alike(make_sampler: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a sampler with rank 0's seed. Ranks that were restarted do not know what `seed_everything` was
    told in an earlier cell, and would take other ranks' part of the data."""

    @functools.wraps(make_sampler)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seeds = [int(os.environ.get("PL_GLOBAL_SEED", 0))]
        dist = sys.modules["torch.distributed"]
        if dist.is_initialized():
            dist.broadcast_object_list(seeds)
        return make_sampler(*args, **{"seed": seeds[0], **kwargs})

    return wrapper


PATCHES: dict[str, Callable[[Any], None]] = {
    f"{package}.{module}": patch
    for packages, module, patch in (
        (("lightning.fabric", "lightning_fabric"), "connector", _choose_mesh),
        (("lightning.fabric", "lightning_fabric"), "accelerators.cpu", _count_processors),
        (("lightning.fabric", "lightning_fabric"), "strategies.ddp", _start_nothing),
        (("lightning.fabric", "lightning_fabric"), "fabric", _count_nodes),
        (("lightning.pytorch", "pytorch_lightning"), "trainer.connectors.accelerator_connector", _choose_mesh),
        (("lightning.pytorch", "pytorch_lightning"), "trainer.connectors.data_connector", _shuffle_alike),
        (("lightning.pytorch", "pytorch_lightning"), "accelerators.cpu", _count_processors),
        (("lightning.pytorch", "pytorch_lightning"), "strategies.ddp", _start_nothing),
    )
    for package in packages
}
"""What to do to which modules once they are imported."""


def _number(variable: str) -> int:
    return int(os.environ[variable])


def _nodes() -> int:
    return _number("WORLD_SIZE") // _number("LOCAL_WORLD_SIZE")


def _held() -> str:
    return f"this mesh has {_number('WORLD_SIZE')} ranks (nodes × ranks: {_nodes()} × {_number('LOCAL_WORLD_SIZE')})"


def _advice() -> str:
    return f"leave both out, or pass devices={_number('LOCAL_WORLD_SIZE')}, num_nodes={_nodes()}"
