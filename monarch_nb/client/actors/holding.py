"""The reservations, meshes and nodes that this process uses, as its actors and calls need them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.pool import known_connections
from monarch_nb.client.presenting import held_by_notebook
from monarch_nb.client.reservations.known.lists import list_reservations
from monarch_nb.client.reservations.reservation import Reservation, in_use
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import gap
from monarch_nb.errors import MonarchNbError, PoolError

OWN_IDLE_S = gap(600.0)
"""So long a reservation that was made for a program outlives one that was killed."""


class Holdings:
    """What this process uses."""

    def __init__(self) -> None:
        self._meshes: dict[str, Mesh | None] = {}
        self._own: Reservation | None = None

    def reservations(self) -> list[Reservation]:
        """Return those in use: the notebook's first, then the newest first."""
        preferred: Reservation | None = held_by_notebook()
        others = [one for one in reversed(in_use()) if one is not preferred]
        return [preferred, *others] if preferred is not None else others

    def reservation(self) -> Reservation:
        """Return the one that is meant when none is named: the notebook's, else the newest that this process uses, else
        one of this computer, which is made then and ends with the process."""
        found = self.reservations()
        if found:
            return found[0]
        self._own = reserve(f"this-host-{os.getpid()}", procs=1, idle=OWN_IDLE_S)
        return self._own

    def release_own(self) -> None:
        """Release the reservation that was made because none was held."""
        if self._own is not None:
            self._own.release()

    def reservation_with(self, hosts: Iterable[str]) -> Reservation:
        """Return the one that has these nodes.

        Raises:
            PoolError: none of this process has.
        """
        named = {host for host in hosts if host}
        if not named:
            return self.reservation()
        for one in self.reservations():
            if named <= set(one.meshes.addresses):
                return one
        raise PoolError("no reservation that this process uses has these nodes: monarch_nb.attach(NAME) uses one")

    def add(self, mesh: Mesh) -> None:
        """Know a mesh."""
        self._meshes[mesh.id] = mesh

    def mesh(self, mesh_id: str) -> Mesh | None:
        """Return a mesh by its id, looked for in the pool when it is new to this process; None when it is not there. It
        is in use from now on."""
        if mesh_id not in self._meshes and mesh_id != "client":
            self._meshes[mesh_id] = self._find(mesh_id)
        return self._meshes.get(mesh_id)

    def in_reach(self, mesh_ids: Collection[str]) -> frozenset[str]:
        """Return these meshes, of which it is known from now on that they have actors, and all others of their
        reservations of which that is known: their actors may know each other."""
        reach = set(mesh_ids)
        for one in self.reservations():
            if here := {mesh_id for mesh_id in mesh_ids if one.meshes.known(mesh_id)}:
                one.meshes.with_actors |= here
                reach |= one.meshes.with_actors
        return frozenset(reach)

    def _find(self, mesh_id: str) -> Mesh | None:
        for one in self.reservations():
            if found := one.meshes.known(mesh_id):
                return found
        try:
            for one in self.reservations():
                call(one.meshes.all())
                if found := one.meshes.known(mesh_id):
                    return found
            for info in list_reservations():
                if info.held_by_me:
                    other = attach(info.name)
                    call(other.meshes.all())
                    if found := other.meshes.known(mesh_id):
                        return found
        except MonarchNbError:  # nobody sees what is printed there, then
            pass
        return None

    async def stop(self, mesh_id: str) -> None:
        """End the rank processes of a mesh beside a main one. Nodes of other reservations do not hold that up."""
        self._meshes.pop(mesh_id, None)
        knowing = [one for one in self.reservations() if one.meshes.known(mesh_id)]
        for one in knowing or self.reservations():
            await one.meshes.stop(mesh_id)

    def connection(self, node: str) -> Connection:
        """Return the connection to a node."""
        return known_connections().get(node) or Connection(node.rpartition("/")[2] or node, node)
