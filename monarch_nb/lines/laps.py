"""Steps that begin anew with each epoch, counted on: so an axis grows as the training does. Pure.

Steps are counted on where they go back

- while the epoch that the line names grows;
- to the first line of the process or before it: another epoch where lines name none, or another training.

Steps that go back in any other way keep their places: the training has resumed from an earlier step, or was restarted
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

MAX_EPOCHS = 4096
"""So many of a series are remembered, for trainings that resume there."""


class Laps:
    """The steps of a series of alike lines of a rank.

    Example:
        >>> laps = Laps()
        >>> laps.counted(1, [0, 10, 20], epochs=[1, 1, 1]), laps.counted(1, [0, 10], epochs=[2, 2])
        ([0.0, 10.0, 20.0], [30.0, 40.0])
    """

    __slots__ = ("_begins", "_first", "_gap", "_process", "_top")

    def __init__(self) -> None:
        self._process = 0
        self._first: tuple[float, float] | None = None
        """Epoch and step of the process's first line."""
        self._top: tuple[float, float] | None = None
        """The newest epoch, and its greatest step."""
        self._gap = 0.0
        self._begins: dict[float, float] = {}
        """Where step 0 of each epoch is."""

    def counted(
        self, process: int, steps: Sequence[float], ends: Sequence[float] = (), epochs: Sequence[float] = ()
    ) -> list[float]:
        """Return the places of more lines on the axis.

        Args:
            process: a number of the process that printed them.
            ends: of progress bars, how many steps there are. epochs: those that the lines name.
        """
        if process != self._process:
            self._process, self._first = process, None
            if not epochs:
                self._top = None
                self._begins.clear()
        lines = zip(steps, ends or repeat(0.0, len(steps)), epochs or repeat(0.0, len(steps)), strict=True)
        return [self._begin(step, end, epoch, has_epoch=bool(epochs)) + step for step, end, epoch in lines]

    def _begin(self, step: float, end: float, epoch: float, *, has_epoch: bool) -> float:
        """Take in a line; return where step 0 of its epoch is."""
        here, begin = (epoch, step), self._begins.get(epoch)
        if self._top is None:
            self._first = self._top = here
            begin = 0.0
        last, top = self._top
        if here < self._top or begin is None:
            before = self._begins.get(last, 0.0)
            after = before + (end or top + (self._gap or max(1.0, top)) - step)
            if self._first is not None and here <= self._first and (epoch < last or not has_epoch):
                self._begins.clear()
                begin, self._top = after, here
            elif begin is None:
                begin = after if epoch > last and step <= top else before
        if self._first is None:
            self._first = here
        if epoch != last:
            self._top = here
        elif here > self._top:
            self._gap, self._top = step - top, here
        if epoch not in self._begins:
            self._begins[epoch] = begin
            if len(self._begins) > MAX_EPOCHS:
                del self._begins[next(iter(self._begins))]
        return begin
