"""The actors that live on a reservation's ranks, found again by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.hosts import ProcMesh, find_actors
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.needs import Holding
from monarch_nb.config import patience
from monarch_nb.errors import UsageError
from monarch_nb.worker.saving.asked import LoadReport, SaveReport


class NoSuchActors(KeyError):
    """No actors of a name live on a reservation. The text names those that do."""

    def __str__(self) -> str:
        return str(self.args[0])


class HeldActors(ActorMesh):
    """A mesh of actors that is saved and loaded by what its attributes hold. An endpoint of its class that is called
    `save` or `load` is meant by this name, as in every mesh of actors."""

    _ranks: Any = None

    def __getattr__(self, name: str) -> Any:
        held = {"save": self._save, "load": self._load}
        if name in held and name not in self._facts.endpoints and name not in self._facts.methods:
            return held[name]
        return super().__getattr__(name)

    def _save(self, directory: str | PathLike[str], names: Iterable[str] = (), **options: Any) -> SaveReport:
        """See Mesh.save."""
        report: SaveReport = self._having().save(directory, names, actors=self._handle.name, **options)
        return report

    def _load(self, directory: str | PathLike[str], names: Iterable[str] = (), **options: Any) -> LoadReport:
        """See Mesh.load."""
        report: LoadReport = self._having().load(directory, names, actors=self._handle.name, **options)
        return report

    def _having(self) -> Any:
        """Return the ranks that have them.

        Raises:
            UsageError: it is a part: its ranks are not known.
        """
        if self._ranks is None:
            raise UsageError(
                "a slice of actors can not be saved: save all of them, or use mesh.select(…).save(actors=…)"
            )
        there = self._ranks.run(f"{self._handle.name!r} in actors", sync=False).values
        return self._ranks.select(rank for rank, is_there in zip(self._ranks.ranks, there, strict=True) if is_there)


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
                if here := find_actors(procs).get(patience(10.0)):
                    self._meshes.with_actors.add(mesh.id)
                    for name, actors in here.items():
                        found[name] = held = HeldActors(actors._handle, actors._view)
                        held._ranks = part
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
