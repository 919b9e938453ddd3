"""Monarch's `monarch.job`, on the nodes that are held: programs that are written for another job run on them.

    from monarch_nb.integrations.monarch import ReservedJob

    job = ReservedJob("dev", {"trainers": 2})       # in place of SlurmJob({"trainers": 2}, …)
    trainers = job.state().trainers                 # a monarch.actor.HostMesh

This imports torchmonarch: `pip install 'monarch-nb[monarch]'`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

from monarch_nb.config import MONARCH_MESH
from monarch_nb.errors import MonarchNbError, NoSuchMesh, UsageError

try:
    _job: Any = importlib.import_module("monarch.job")
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "monarch":
        raise
    raise ModuleNotFoundError(
        "ReservedJob needs torchmonarch: pip install 'monarch-nb[monarch]'", name="monarch"
    ) from None


class ReservedJob(_job.JobTrait):  # type: ignore[misc]
    """A job whose hosts are the nodes of a reservation. It asks for none and gives none back.

    Args:
        name: of the reservation, as `monarch_nb.attach` takes it.
        meshes: the names of the host meshes, and how many nodes each has; the nodes are taken in their order. By
            default one mesh, `hosts`, of all nodes.
        linger: how long Monarch's workers stay when the last client is gone; see `Reservation.monarch`.

    Example:
        >>> hosts = ReservedJob("dev").state().hosts  # doctest: +SKIP
    """

    def __init__(self, name: str = "dev", meshes: Mapping[str, int] | None = None, *, linger: float | str = "10m"):
        super().__init__()
        self._name, self._meshes, self._linger = name, dict(meshes or {}), linger

    def __repr__(self) -> str:
        return f"ReservedJob({self._name!r}{f', {self._meshes}' if self._meshes else ''})"

    def add_mesh(self, name: str, num_replicas: int, **_: Any) -> None:
        """Add a host mesh, as KubernetesJob does. What else that takes says how pods are made, and is ignored."""
        self._meshes[name] = num_replicas

    def can_run(self, spec: Any) -> bool:
        """Whether this job, which was kept in a file, is what is asked for, and still held."""
        if not isinstance(spec, ReservedJob) or (spec._name, spec._meshes) != (self._name, self._meshes):
            return False
        try:
            self._reservation()
        except MonarchNbError:
            return False
        return True

    def _reservation(self) -> Any:
        return importlib.import_module("monarch_nb").attach(self._name)

    def _places(self, nodes: int) -> dict[str, range]:
        """Return the nodes of each mesh."""
        meshes = self._meshes or {"hosts": nodes}
        if (wanted := sum(meshes.values())) > nodes:
            raise UsageError(
                f"{self!r} needs {wanted} nodes, and {self._name} has {nodes}: %mesh grow --nodes {wanted} holds more"
            )
        places, first = {}, 0
        for name, count in meshes.items():
            places[name] = range(first, first + count)
            first += count
        return places

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise UsageError(f"{self!r} starts no client: run python {client_script} yourself, or in a cell")
        self._places(self._reservation().nodes)

    def _state(self) -> Any:
        reservation = self._reservation()
        places = self._places(reservation.nodes)
        hosts = {name: reservation.monarch(nodes=nodes, linger=self._linger) for name, nodes in places.items()}
        return _job.JobState(hosts)

    def _kill(self) -> None:
        """End the workers; fine when they have ended. The reservation stays held."""
        with contextlib.suppress(NoSuchMesh):
            self._reservation().stop_mesh(MONARCH_MESH)

    def _should_spawn_telemetry_worker_collector_actors(self) -> bool:
        return False
