"""The world that a rank is in: that of the mesh, but while a run has one of its own, that of the run's ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from monarch_nb.ground.places import Place
from monarch_nb.integrations import lightning
from monarch_nb.proto.run_pb2 import RunSpec
from monarch_nb.worker.forking.after_fork import presets
from monarch_nb.worker.groups import forming


class Worlds:
    """Tells user code which world it is in: by torchrun's variables and by the numbers that a namespace starts with.

    Args:
        rank: the rank's number in the mesh.
        namespace: of the cells.
    """

    def __init__(self, rank: int, namespace: dict[str, Any]) -> None:
        self.rank, self._namespace = rank, namespace
        self._left_own = False

    @contextmanager
    def of(self, spec: RunSpec) -> Iterator[None]:
        """Be in a run's world while the block is executed.

        A world of a run's own begins without process groups. Those that it leaves end when the next run begins: other
        ranks may still need them when this one is done.
        """
        if spec.own_world or self._left_own:
            forming.end_groups()
            self._left_own = False
        if not spec.own_world:
            yield
            return
        self._left_own = True
        forming.begin_world(spec.ranks)
        before = self._enter(self._place_in(spec))
        try:
            yield
        finally:
            self._leave(*before)
            forming.begin_world(())

    def _place_in(self, spec: RunSpec) -> Place:
        """Return the rank's place in the run's world. Its local rank stays: by it the rank finds its GPU."""
        per_node, size = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        place = Place.among(self.rank, spec.ranks or range(size), per_node)
        return replace(place, local_rank=int(os.environ["LOCAL_RANK"]))

    def _enter(self, place: Place) -> tuple[dict[str, str], dict[str, int]]:
        """Say that this rank has another place; return what was said before. What users have given a meaning of their
        own is left alone: a variable `rank` of a cell, and what they want of Lightning."""
        of_mesh = Place.among(self.rank, range(int(os.environ["WORLD_SIZE"])), int(os.environ["LOCAL_WORLD_SIZE"]))
        defaults = of_mesh.trainer_defaults
        new = {**place.variables, **place.trainer_defaults}
        variables = {
            name: value
            for name in new
            if (value := os.environ.get(name)) is not None and defaults.get(name, value) == value
        }
        numbers = {name: value for name, value in presets(os.environ).items() if self._namespace.get(name) == value}
        os.environ.update({name: new[name] for name in variables})
        self._namespace.update({name: value for name, value in presets(os.environ).items() if name in numbers})
        lightning.become_rank()
        return variables, numbers

    def _leave(self, variables: dict[str, str], numbers: dict[str, int]) -> None:
        own = presets(os.environ)
        os.environ.update(variables)
        self._namespace.update(
            {name: value for name, value in numbers.items() if self._namespace.get(name) == own[name]}
        )
        lightning.become_rank()
