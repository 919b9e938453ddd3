"""Saying that several ranks train a model each which they were most likely meant to train together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch_nb.client import events

if TYPE_CHECKING:
    from monarch_nb.client.mesh_core import MeshCore

_QUIET_S = 1.0
"""It is said when no other rank has begun to train for so long, so that the line has their number."""


class LoneTraining:
    """What ranks of one run tell of models that they train without a process group. It may be meant: it is said once in
    the life of a mesh.

    Args:
        core: the mesh.
        emit: tells listeners.
    """

    def __init__(self, core: MeshCore, emit: Callable[[events.Event], None]) -> None:
        self._core, self._emit = core, emit
        self._ranks: defaultdict[str, set[int]] = defaultdict(set)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, model: str) -> None:
        """A rank trains a model: `model` is equal for those alike."""
        self._ranks[model].add(rank)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_QUIET_S, self.say)

    def say(self) -> None:
        """Say now what there is to say: the run has finished, or all who train have begun."""
        if self._timer is not None:
            self._timer.cancel()
        count = max(map(len, self._ranks.values()), default=0)
        if count > 1 and not self._core.has_told_lone_training:
            self._core.has_told_lone_training = True
            text = (
                f"{count} ranks each train a model of their own (no process group): "
                "dist.init_process_group() and DistributedDataParallel make it one"
            )
            self._emit(events.Notice(text, key="lone training"))
