"""The class that actors are of."""

from __future__ import annotations

import functools
import logging
from typing import NoReturn, Self

from monarch_nb.actor.shape import MeshTrait
from monarch_nb.shape import Region


class Actor(MeshTrait):
    """The base class of actors. An actor lives in a rank, and answers calls of its endpoints one after the other, on a
    thread of its own.

    A subclass may define two hooks:

    - `__supervise__(self, failure)` is called when a mesh that the actor spawned has failed. Return True when you have
      handled the failure.
    - `__cleanup__(self, exception)` is called when the actor ends.

    Example:
        >>> class Counter(Actor):
        ...     def __init__(self, value):
        ...         self.value = value
        ...
        ...     @endpoint
        ...     def add(self, n):
        ...         self.value += n
        ...         return self.value
        >>> counters = mesh.spawn("counters", Counter, 0)
        >>> counters.add.call(1).get()
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """A logger with the name of the class, at level DEBUG."""
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def _region(self) -> Region:
        self._is_no_mesh()

    def _with_region(self, region: Region) -> Self:
        self._is_no_mesh()

    def _is_no_mesh(self) -> NoReturn:
        raise NotImplementedError(
            "actor implementations are not meshes, but we can't convince the typechecker of it: spawn the actor, and "
            "use what `spawn` returns"
        )
