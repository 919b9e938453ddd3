"""`Reservation.monarch`: the nodes of a reservation, as hosts of Monarch's own engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.monarch import engine, workers
from monarch_nb.config import MONARCH_LINGER_S
from monarch_nb.times import Duration, seconds_of


class Holding(Protocol):
    """A reservation."""

    name: str
    _attached: dict[tuple[str, ...], Any]

    @property
    def meshes(self) -> workers.Meshes: ...


class MonarchHosts:
    """What a reservation has for Monarch's own engine."""

    def __init__(self) -> None:
        self._attached: dict[tuple[str, ...], Any] = {}

    def monarch(self: Holding, *, nodes: Iterable[int] | None = None, linger: Duration = MONARCH_LINGER_S) -> Any:
        """Return the nodes as a `monarch.actor.HostMesh`, with one host per node. Everything of it is Monarch's own.

        The first call starts Monarch's worker loop on each node: a rank of the mesh `monarch`, with the environment,
        the GPUs, the directory and the Python of the other ranks. Later calls, also in other kernels, attach to the
        same workers. What actors print is shown in the cell that calls them.

        The workers end with the reservation, with `dev.stop_mesh("monarch")`, with `shutdown()` of the hosts, and when
        the last client that uses them has been gone for a while. Actors end with the client that spawned them.

        Args:
            nodes: the numbers of those that are meant; by default all.
            linger: how long the workers stay when the last client is gone: "10m", "2h", a timedelta or seconds.

        Raises:
            UsageError: torchmonarch is not installed here or on a node, the versions differ, or there is no such node.
            SpawnError: a worker could not start.
            NodeUnreachable: a node does not answer.

        Example:
            >>> hosts = dev.monarch()  # doctest: +SKIP
            >>> procs = hosts.spawn_procs(per_host={"gpus": 8})  # doctest: +SKIP
            >>> trainers = procs.spawn("trainers", Trainer)  # doctest: +SKIP
        """
        linger_s = seconds_of(linger, "linger")
        engine.load()
        over = {addresses: hosts for addresses, hosts in self._attached.items() if engine.is_shut_down(hosts)}
        with workers.claimed(self.meshes, self.name):
            mesh = call(workers.mesh_of(self.meshes))
            call(workers.stay_while_used(mesh, linger_s))
            serving = workers.serve(mesh, {address for addresses in over for address in addresses})
        for shut_down in over:
            del self._attached[shut_down]
        addresses = workers.chosen(serving.addresses, nodes)
        hosts = self._attached.get(addresses)
        if hosts is None:
            if serving.certificates:
                engine.join(serving.addresses[0], serving.certificates)
            workers.tell_deaths(mesh)
            attached = workers.AttachedMesh(mesh)
            engine.call_in_cells(mesh.id, attached)
            hosts = self._attached[addresses] = engine.attach(addresses, self.name, serving.python, attached)
            engine.after_shutdown(hosts, lambda: _end_if_idle(self, serving))
        return hosts


def _end_if_idle(holding: Holding, serving: workers.Workers) -> None:
    """Hosts were shut down: when no loop is left, end the ranks that have run them."""
    over = {address for each, hosts in holding._attached.items() if engine.is_shut_down(hosts) for address in each}
    if over.issuperset(serving.addresses):
        call(holding.meshes.stop(serving.mesh.id))
