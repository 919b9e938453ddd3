"""Saying that several ranks train a model each which they were most likely meant to train together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Protocol

from monarch_nb.client.connections import events
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.config import cadence

_QUIET_S = cadence(1.0)
"""It is said when no other rank has begun to train for so long, so that the line has their number."""


class TrainingRun(Protocol):
    """A run in which ranks may train."""

    is_script: bool

    @property
    def mesh(self) -> HeldMesh: ...

    def emit(self, event: events.Event) -> None: ...


class LoneTraining:
    """What ranks of one run tell of models that they train without a process group. It may be meant: it is said once in
    the life of live ranks, so once for all cells of a mesh, and once for each script.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.has_told_lone_training = False
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
        teller = self if self._run.is_script else self._run.mesh.core
        if count > 1 and not teller.has_told_lone_training:
            teller.has_told_lone_training = True
            text = (
                f"{count} ranks each train a model of their own (no process group): "
                "dist.init_process_group() and DistributedDataParallel make it one"
            )
            self._run.emit(events.Notice(text, key="lone training"))
