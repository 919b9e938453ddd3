"""Curves that are read on while their runs go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from monarch_nb.client.logs.metrics import RunMetrics
from monarch_nb.client.meshes.printed import resolved
from monarch_nb.errors import MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.notebook.curves.words import RunPictures

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

FIRST_S = 0.7
"""So long the first picture is read for."""
_CATCH_UP_S = 0.5
_LIVE_BUDGET_S = 0.2
_LIVE_INTERVAL_S = 1.0
"""A node that writes all the time is asked so seldom that reading costs little."""
_SILENT_INTERVAL_S = 3.0
_LOOK_FOR_NAMES_S = 0.3
MAX_NAMES, MAX_RUNS = 12, 6


class Drawing:
    """Some names' curves of some runs. Its coroutines run on the background loop.

    Args:
        runs: what reads them. titles: what they are called.
        names: whose numbers; x: against what, empty for the step of a line.
    """

    def __init__(self, runs: Sequence[RunMetrics], titles: Mapping[int, str], names: Sequence[str], x: str) -> None:
        if len(names) > MAX_NAMES or len(runs) > MAX_RUNS:
            raise UsageError(f"at most {MAX_NAMES} names of {MAX_RUNS} runs are drawn at once")
        self._runs, self._titles, self._wanted, self._x_wanted = runs, titles, tuple(dict.fromkeys(names)), x
        self._names: dict[int, list[str]] = {}
        """By run, those that are meant, as far as it has them."""
        self._x: dict[int, str] = {}
        self._missing: dict[int, list[str]] = {}
        """By run, those that it may still print."""
        self._never: dict[int, list[str]] = {}
        self._over: set[int] = set()
        self._trouble: dict[int, str] = {}

    @property
    def is_over(self) -> bool:
        """Whether everything is read that will ever be written."""
        return len(self._over) == len(self._runs)

    async def begin(self) -> list[RunPictures]:
        """Read for less than a second; return what there is to draw.

        Raises:
            UsageError: no line of the runs has one of the names, and none will; the message has the nearest ones.
            NodeUnreachable: no node answers.
        """
        await asyncio.gather(*(self._find_names(run) for run in self._runs))
        await asyncio.gather(*(self._read(run, FIRST_S) for run in self._runs))
        return self.drawn()

    async def changes(self) -> AsyncGenerator[list[RunPictures], None]:
        """Yield what there is to draw whenever there is more, about once a second, until everything is read."""
        told: object = self._state()
        while not self.is_over:
            is_behind = any(run.share_read < 1.0 for run in self._runs if run.number not in self._over)
            began_s = time.monotonic()
            await asyncio.gather(*(self._go_on(run, is_behind) for run in self._runs if run.number not in self._over))
            if (state := self._state()) != told or self.is_over:
                told = state
                yield self.drawn()
            if self._trouble:
                await asyncio.sleep(_SILENT_INTERVAL_S)
            elif not is_behind:
                await asyncio.sleep(max(0.0, _LIVE_INTERVAL_S - (time.monotonic() - began_s)))

    def _state(self) -> object:
        return [
            (run.share_read, run.ranks_read, run.read_bytes, self._trouble.get(run.number), len(self._missing))
            for run in self._runs
        ]

    async def _go_on(self, run: RunMetrics, is_behind: bool) -> None:
        try:
            if self._missing.get(run.number):
                await self._find_names(run)
            await self._read(run, _CATCH_UP_S if is_behind else _LIVE_BUDGET_S)
            self._trouble.pop(run.number, None)
        except NodeUnreachable as error:
            self._trouble[run.number] = str(error)
        except UsageError as error:  # it has ended without them
            self._over.add(run.number)
            self._trouble[run.number] = str(error)

    async def _find_names(self, run: RunMetrics) -> None:
        found = await run.names(_LOOK_FOR_NAMES_S)
        present, missing = [], []
        for name in (*self._wanted, *([self._x_wanted] if self._x_wanted else [])):
            try:
                present += resolved([name], found, run.number)
            except UsageError:
                if found.finished and found.is_all and len(self._runs) == 1:
                    raise
                missing.append(name)
        if self._x_wanted and self._x_wanted not in missing:
            self._x[run.number] = present.pop()
        self._names[run.number] = [] if self._x_wanted in missing else present
        self._missing[run.number] = [] if found.finished and found.is_all else missing
        self._never[run.number] = missing

    async def _read(self, run: RunMetrics, budget_s: float) -> None:
        names = self._names[run.number]
        if await run.read(names, self._x.get(run.number, ""), budget_s):
            self._over.add(run.number)

    def drawn(self) -> list[RunPictures]:
        """Return what there is to draw, and what there is to say of it."""
        return [
            RunPictures(self._titles[run.number], run.pictures(self._names.get(run.number, [])), self._notes(run))
            for run in self._runs
        ]

    def _notes(self, run: RunMetrics) -> list[str]:
        notes = []
        if missing := self._never.get(run.number):
            notes.append(f"no line has {' or '.join(missing)}{' so far' if self._missing[run.number] else ''}")
        if run.share_read < 1.0:
            read = f"{run.ranks_read} of {counted(len(run.ranks), 'rank')}"
            notes.append(f"{run.share_read:.0%} of what was printed is read, {read} to the end")
        if run.silent:
            notes.append(f"{listed(run.silent)} {'does' if len(run.silent) == 1 else 'do'} not answer")
        if trouble := self._trouble.get(run.number):
            notes.append(trouble)
        return notes


def drawing_of(mesh: Mesh, names: Sequence[str], x: str, numbers: Sequence[int]) -> Drawing:
    """Return what draws names of some runs of a mesh, by default of the newest that has one of them.

    Raises:
        RunNotFound: nothing has run, or there was no such run.
    """
    runs = [mesh.numbers(run=number) for number in numbers] or [mesh.numbers(names)]
    return Drawing(runs, titles(mesh, [run.number for run in runs]), names, x)


def titles(mesh: Mesh, numbers: Sequence[int]) -> dict[int, str]:
    """Return what runs are called; those that are forgotten by their numbers."""
    known = {info.number: run_name(info.number, info.cell_number, owner=info.owner) for info in mesh.past_runs()}
    return {number: known.get(number) or run_name(number) for number in numbers}


async def follow(drawing: Drawing, draw: Callable[[list[RunPictures]], None]) -> None:
    """Have a drawing drawn whenever there is more of it, until its runs are over or their mesh is gone."""
    try:
        async for runs in drawing.changes():
            draw(runs)
    except MonarchNbError as error:  # the mesh was released: the picture stays
        draw([RunPictures(run.title, run.pictures, [*run.notes, str(error)]) for run in drawing.drawn()])
