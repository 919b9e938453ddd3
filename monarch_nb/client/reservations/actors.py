"""The actors that live on a reservation's ranks, found again by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.hosts import ProcMesh, find_actors
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.needs import Holding

FIND_TIMEOUT_S = 10.0


class NoSuchActors(KeyError):
    """No actors of a name live on a reservation. The text names those that do."""

    def __str__(self) -> str:
        return str(self.args[0])


class LiveActors(Mapping[str, Any]):
    """The meshes of actors on the ranks of a reservation, by name; whoever spawned them, in whichever kernel. Ranks are
    asked anew each time.

    Example:
        >>> trainers = monarch_nb.attach("dev").actors["trainers"]  # doctest: +SKIP
    """

    def __init__(self, reservation: Holding, meshes: Meshes) -> None:
        self._reservation, self._meshes = reservation, meshes

    def _find(self) -> dict[str, ActorMesh]:
        found: dict[str, ActorMesh] = {}
        for mesh in reversed(call(self._meshes.all())):  # of equal names that of the main mesh is meant
            call(mesh.core.status())
            alive = [rank for rank in mesh.ranks if rank not in mesh.core.dead]
            if alive:
                part = mesh.select(alive)
                procs = ProcMesh.of(mesh.name, {"ranks": len(alive)}, part.addresses)
                if here := find_actors(procs).get(FIND_TIMEOUT_S):
                    self._meshes.with_actors.add(mesh.id)
                    found.update(here)
        return found

    def __getitem__(self, name: str) -> Any:
        found = self._find()
        if name not in found:
            there = f"its actors are {', '.join(sorted(found))}" if found else "it has none"
            raise NoSuchActors(f"no actors {name!r} on {self._reservation.name}: {there}")
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._find()))

    def __len__(self) -> int:
        return len(self._find())

    def __repr__(self) -> str:
        found = self._find()
        if not found:
            return f"no actors on {self._reservation.name}"
        return "\n".join(f"{name}: {mesh!r}" for name, mesh in sorted(found.items()))
