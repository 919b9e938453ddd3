"""The failures of actors, as the actors that spawned them get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Told(NamedTuple):
    """The texts that people get about a failure.

    Attributes:
        title: what failed: "trainers.step (broadcast)".
        line: why, in one line.
        details: the traceback, as text.
        runs: in whose name it was called (engine.outside.Runs).
    """

    title: str
    line: str
    details: str
    runs: Mapping[str, tuple[str, int, int]]


class MeshFailure:
    """The failure of actors of a mesh. It is no exception.

    `__supervise__` of the actor that spawned the mesh gets it. If nobody handles it, `unhandled_fault_hook` gets it.

    Attributes:
        mesh: the mesh of actors.
        mesh_name: the identifier of the mesh: its name and some characters.
        crashed_ranks: the ranks that failed.
        event: what happened, with the traceback.

    Example:
        >>> class Parent(Actor):
        ...     def __supervise__(self, failure):
        ...         print(failure.report(), failure.crashed_ranks)
        ...         return True  # handled: nobody else is told
    """

    def __init__(self, mesh: Any, mesh_name: str, crashed_ranks: Sequence[int], event: str, told: Told) -> None:
        self.mesh, self.mesh_name, self.crashed_ranks, self.event = mesh, mesh_name, list(crashed_ranks), event
        self._told = told

    def report(self) -> str:
        """Return what happened, for people."""
        return self.event

    def told(self) -> Told:
        """Return the texts for people who did not ask."""
        return self._told

    def __str__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={self.crashed_ranks}, event={self.event})"

    __repr__ = __str__
