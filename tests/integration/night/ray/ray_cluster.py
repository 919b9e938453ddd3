"""A real Ray cluster, all of whose nodes are this machine. Ray's own processes bind loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.lighter import lighter_path
from gpus import FAKE_NVML, FakeGpus
from monarch_nb.config import CONFIG_VARIABLE, GPU_LOCKS_VARIABLE, HOME_VARIABLE

CPUS, GPUS = 4, 4
STORE_BYTES = 80_000_000
ATTEMPTS = 3
"""Ray gives a node's agent 15 s to come up; a machine that is busy with other things needs longer at times."""
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""To 0: else a cluster on loopback does not find itself."""
_SOON = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
"""A node that is killed is dead for the cluster after seconds, not tens of seconds."""


class RayCluster:
    """A cluster of nodes n0, n1, …, each with 4 CPUs and 4 GPUs that are not there; its head has none.

    Args:
        nodes: how many. cpus, gpus: of each.
    """

    def __init__(self, nodes: int, cpus: int, gpus: int) -> None:
        self._size = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": STORE_BYTES}
        self._nodes: dict[str, Any] = {}
        self._names = [f"n{index}" for index in range(nodes)]
        self.directory = Path(tempfile.mkdtemp(prefix="mnb-ray-", dir="/tmp"))  # short: socket paths end at 107 bytes
        FakeGpus(self.directory / "gpus.json")
        (self.directory / "ray").mkdir()
        self._cluster = self._patiently(self._head)
        self.address: str = self._cluster.address
        self.mend()

    def _head(self) -> Any:
        from ray.cluster_utils import Cluster

        self._kill_all()  # what an earlier attempt has left
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES, "_system_config": _SOON}
        return Cluster(initialize_head=True, head_node_args={**head, "temp_dir": str(self.directory)})

    def _patiently(self, start: Callable[[], Any]) -> Any:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(Exception), self._environment():
                return start()
        try:
            with self._environment():
                return start()
        except BaseException:
            self._kill_all()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _kill_all(self) -> None:
        """Kill Ray's processes: those that it has lost, too."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(str(self.directory) in word for word in process.cmdline()):
                    process.kill()

    def mend(self) -> None:
        """Have all nodes."""
        for name in self._names:
            if name not in self._nodes:
                add = partial(self._cluster.add_node, wait=False, node_name=name, **self._size)
                self._nodes[name] = self._patiently(add)
        self._cluster.wait_for_nodes(120)

    def kill(self, name: str) -> None:
        """Kill a node, as when its machine fails."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Have the environment of a node: that of no test, with GPUs that are a stand-in's."""
        with pytest.MonkeyPatch.context() as patch:
            for name in (HOME_VARIABLE, GPU_LOCKS_VARIABLE, CONFIG_VARIABLE):
                patch.delenv(name, raising=False)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE_NVML), lighter_path()]))
            patch.setenv("FAKE_NVML", str(self.directory / "gpus.json"))
            patch.setenv("RAY_TMPDIR", str(self.directory))  # not /tmp/ray, which may not be there, or is a person's
            yield

    def left(self) -> str:
        """Return which placement groups, actors and keys reservations have."""
        from monarch_nb.provision.ray.node import NAMESPACE

        state, store = self.state(), self.store()
        groups = [group["name"] for group in state.placement_group_table().values() if group["state"] != "REMOVED"]
        actors = [actor["Name"] for actor in state.actor_table(None).values() if actor["State"] != "DEAD"]
        keys = store.internal_kv_keys(b"", namespace=NAMESPACE.encode())
        return " ".join([*groups, *actors, *map(bytes.decode, keys)])

    def state(self) -> Any:
        """Return the tables of the cluster."""
        from monarch_nb.provision.ray import helper as ray_helper

        return ray_helper._connect(self.address)[1]

    def store(self) -> Any:
        """Return the control store of the cluster."""
        from monarch_nb.provision.ray import helper as ray_helper

        return ray_helper._connect(self.address)[0]

    def close(self) -> None:
        """End it."""
        self._cluster.shutdown()
        self._kill_all()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def cluster(nodes: int, cpus: int = CPUS, gpus: int = GPUS) -> Iterator[RayCluster]:
    """Run a cluster for the time of a `with` block; its address is in $RAY_ADDRESS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_LOOPBACK, "0")
        made = RayCluster(nodes, cpus, gpus)
        patch.setenv("RAY_ADDRESS", made.address)
        try:
            yield made
        finally:
            made.close()
