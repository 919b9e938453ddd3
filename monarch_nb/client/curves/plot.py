"""Curves of the numbers of runs: read while these go on, a picture for files, characters for terminals, text else."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.pictures import COLOURS, COLUMNS, characters, svg
from monarch_nb.client.curves.words import RunPictures, resolved, text, x_name
from monarch_nb.client.logs.metrics import RunMetrics
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.lines.named import nearest
from monarch_nb.lines.pictures import Picture


def curves_json(runs: Sequence[RunPictures]) -> dict[str, Any]:
    """Return curves as the browser takes them."""
    names = list(dict.fromkeys(picture.name for run in runs for picture in run.pictures))
    return {
        "runs": [
            {"title": run.title, "colour": COLOURS[index % len(COLOURS)], "notes": list(run.notes)}
            for index, run in enumerate(runs)
        ],
        "charts": [_chart(name, runs) for name in names],
    }


def _chart(name: str, runs: Sequence[RunPictures]) -> dict[str, Any]:
    drawn = [(index, picture) for index, run in enumerate(runs) for picture in run.pictures if picture.name == name]
    first = drawn[0][1]
    return {
        "name": name,
        "unit": first.unit,
        "x": x_name(first.x),
        "lines": [_line(index, picture) for index, picture in drawn],
    }


def _line(run: int, picture: Picture) -> dict[str, Any]:
    band = [(part or (math.nan,) * 3) for part in picture.band]
    xs = [x for x, _, _ in band]
    for place, x in enumerate(xs):  # a gap lies beside what is before it
        if x != x:
            xs[place] = math.nextafter(xs[place - 1], math.inf)
    return {
        "run": run,
        "xs": list(picture.xs),
        "ys": list(picture.ys),
        "band": [xs, [_or_none(low) for _, low, _ in band], [_or_none(high) for _, _, high in band]],
        "marks": [[x, what] for x, what in picture.marks],
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


FIRST_S = cadence(0.7)
"""So long the first picture is read for."""
_CATCH_UP_S = cadence(0.5)
_LIVE_BUDGET_S = cadence(0.2)
_LIVE_INTERVAL_S = cadence(1.0)
"""A node that writes all the time is asked so seldom that reading costs little."""
MAX_NAMES, MAX_RUNS = 12, 6


class Drawing:
    """Some names' curves of some runs. Its coroutines run on the background loop.

    Args:
        runs: what reads them. titles: what they are called.
        names: whose numbers, of all runs or of each; x: against what, empty for the step of a line.

    Attributes:
        version: rises whenever there is something new to draw or to say.
    """

    def __init__(
        self,
        runs: Sequence[RunMetrics],
        titles: Mapping[int, str],
        names: Sequence[str] | Mapping[int, Sequence[str]],
        x: str,
    ) -> None:
        of_each = names if isinstance(names, Mapping) else {run.number: names for run in runs}
        if len(set().union(*of_each.values())) > MAX_NAMES or len(runs) > MAX_RUNS:
            raise UsageError(f"at most {MAX_NAMES} names of {MAX_RUNS} runs are drawn at once")
        self._runs, self._titles, self._x_wanted = runs, titles, x
        self._wanted = {number: tuple(dict.fromkeys(each)) for number, each in of_each.items()}
        self._is_strict = isinstance(names, Mapping) or len(runs) == 1
        """A run that has ended without a name that is wanted of it is an error."""
        self._names: dict[int, list[str]] = {}
        """By run, those that are meant, as far as it has them."""
        self._x: dict[int, str] = {}
        self._missing: dict[int, list[str]] = {}
        """By run, those that it may still print."""
        self._never: dict[int, list[str]] = {}
        self._near: dict[int, list[str]] = {}
        """By run, what it has printed that is like those."""
        self._over: set[int] = set()
        self._trouble: dict[int, str] = {}
        self.version = 0
        self._reading = asyncio.Lock()

    @property
    def runs(self) -> Sequence[RunMetrics]:
        """What reads the numbers of each run."""
        return self._runs

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
        while not self.is_over:
            began_s, version = time.monotonic(), self.version
            await self.advance()
            if self.version != version or self.is_over:
                yield self.drawn()
            await asyncio.sleep(max(0.0, self.rest_s - (time.monotonic() - began_s)))

    async def advance(self) -> None:
        """Read on for less than a second."""
        async with self._reading:
            before = self._state()
            budget_s = _CATCH_UP_S if self.is_behind else _LIVE_BUDGET_S
            going_on = (run for run in self._runs if run.number not in self._over)
            await asyncio.gather(*(self._go_on(run, budget_s) for run in going_on))
            self.version += self._state() != before

    async def catch_up(self) -> None:
        """Read until all is read that was printed; return at once where a node does not answer."""
        while self.is_behind and not self._trouble:
            await self.advance()

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read of what was printed."""
        return any(run.share_read < 1.0 for run in self._runs if run.number not in self._over)

    @property
    def rest_s(self) -> float:
        """How long to wait from one look to the next."""
        if self._trouble:
            return cadence(3.0)
        return 0.0 if self.is_behind else _LIVE_INTERVAL_S

    def _state(self) -> object:
        return [
            (run.share_read, run.ranks_read, run.read_bytes, self._trouble.get(run.number), run.number in self._over)
            for run in self._runs
        ]

    async def _go_on(self, run: RunMetrics, budget_s: float) -> None:
        try:
            if self._missing.get(run.number):
                await self._find_names(run)
            await self._read(run, budget_s)
            self._trouble.pop(run.number, None)
        except NodeUnreachable as error:
            self._trouble[run.number] = str(error)
        except UsageError as error:  # it has ended without them
            self._over.add(run.number)
            self._trouble[run.number] = str(error)

    async def _find_names(self, run: RunMetrics) -> None:
        found = await run.names(cadence(0.3))
        present, missing = [], []
        for name in (*self._wanted[run.number], *([self._x_wanted] if self._x_wanted else [])):
            try:
                present += resolved([name], found, run.number)
            except UsageError:
                if found.finished and found.is_all and self._is_strict:
                    raise
                missing.append(name)
        if self._x_wanted and self._x_wanted not in missing:
            self._x[run.number] = present.pop()
        self._names[run.number] = [] if self._x_wanted in missing else present
        self._missing[run.number] = [] if found.finished and found.is_all else missing
        self._never[run.number] = missing
        known = [metric.name for metric in found.metrics]
        self._near[run.number] = list(dict.fromkeys(near for name in missing for near in nearest(name, known)))

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
            near = f"; nearest: {', '.join(self._near[run.number])}" if self._near[run.number] else ""
            notes.append(f"no line has {' or '.join(missing)}{' so far' if self._missing[run.number] else ''}{near}")
        if run.share_read < 1.0:
            read = f"{run.ranks_read} of {counted(len(run.ranks), 'rank')}"
            notes.append(f"{run.share_read:.0%} of what was printed is read, {read} to the end")
        if run.silent:
            notes.append(f"{listed(run.silent)} {'does' if len(run.silent) == 1 else 'do'} not answer")
        if trouble := self._trouble.get(run.number):
            notes.append(trouble)
        return notes


async def follow(drawing: Drawing, draw: Callable[[list[RunPictures]], None]) -> None:
    """Have a drawing drawn whenever there is more of it, until its runs are over or their mesh is gone."""
    try:
        async for runs in drawing.changes():
            draw(runs)
    except MonarchNbError as error:  # the mesh was released: the picture stays
        draw(noted(drawing.drawn(), str(error)))


def noted(runs: Sequence[RunPictures], note: str) -> list[RunPictures]:
    """Return what there is to draw, with more to say of it."""
    return [RunPictures(run.title, run.pictures, [*run.notes, note]) for run in runs]


MAX_WIDTH = 120
"""Of a picture with characters, however wide a terminal is."""
CATCH_UP_S = patience(60.0)
"""So long a picture waits until all is read that was printed; it says how much that is."""


class Plot:
    """Curves of what ranks printed: see `Mesh.plot`. In a notebook with the extension a cell shows them live; `print`
    draws them with characters.

    Attributes:
        drawing: what reads them.

    Raises:
        UsageError: no line has a name that is wanted; the message has the nearest ones.

    Example:
        >>> plot = run.plot("loss")  # doctest: +SKIP
        >>> plot.save("loss.svg")  # doctest: +SKIP
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        call(drawing.begin())

    def svg(self) -> str:
        """Return the picture as SVG, light and dark, of all that is printed now."""
        return svg(self.drawn())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file as SVG.

        Raises:
            OSError: the file can not be written.
        """
        Path(path).write_text(self.svg(), encoding="utf-8")

    def drawn(self) -> list[RunPictures]:
        """Return what there is to draw of all that is printed now."""
        try:
            if not self.drawing.is_over:
                call(self._read(), CATCH_UP_S)
        except TimeoutError:  # the notes say how much is read
            pass
        except MonarchNbError as error:  # the mesh was released: the picture stays
            return noted(self.drawing.drawn(), str(error))
        return self.drawing.drawn()

    async def _read(self) -> None:
        await self.drawing.advance()
        await self.drawing.catch_up()

    def __str__(self) -> str:
        return characters(self.drawn())

    def __repr__(self) -> str:
        return characters(self.drawing.drawn())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the picture for notebooks that show nothing live, and the last values as text."""
        drawn = self.drawn()
        return {"image/svg+xml": svg(drawn), "text/plain": text(drawn)}


def drawn_for_terminal(plot: Plot) -> str:
    """Return a plot drawn with characters, as wide as the terminal, in colours where there is one."""
    columns = shutil.get_terminal_size((COLUMNS, 0)).columns
    return characters(plot.drawn(), width=min(columns, MAX_WIDTH), colours=sys.stdout.isatty())
