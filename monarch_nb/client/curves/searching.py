"""Which of the newest runs have printed a number, where nobody says which run is meant."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from monarch_nb.client.curves.words import drawable, is_there, nowhere, resolved
from monarch_nb.client.logs.metrics import Found, RunMetrics
from monarch_nb.config import cadence
from monarch_nb.errors import UsageError

LOOKED_AT_RUNS = 20
"""So many of the newest runs are looked at."""
_OLDER_S = cadence(3.0)
"""So long it is looked at what older runs have, where the newest one is listed."""


@dataclass(frozen=True)
class Searched:
    """What the newest runs have printed.

    Attributes:
        runs: what reads them, newest first, and what was found there.
        has_older: there are older runs, which were not looked at.
    """

    runs: Sequence[tuple[RunMetrics, Found]]
    has_older: bool = False

    def newest(self, names: Sequence[str] = ()) -> RunMetrics:
        """Return the newest run that has all of these names. Where none has all it is the newest that has most of
        them, and where none has any the newest that has numbers at all."""
        best, most = self.runs[0][0], -1
        for run, found in self.runs:
            known = _known(found, names)
            there = sum(is_there(name, known) for name in names)
            if known and there > most:
                best, most = run, there
        return best

    def by_name(self, names: Sequence[str], queued: Container[int] = ()) -> dict[RunMetrics, list[str]]:
        """Return which run each name is drawn of, oldest first: the newest that has all of them; else of each name the
        newest that has it. What no run has may still come from one that goes on.

        Args:
            queued: the numbers of runs that wait for their turn: others print sooner.

        Raises:
            UsageError: no run that was looked at has a name, and none will.
        """
        best = self.newest(names)
        if all(is_there(name, _known(self._found(best), names)) for name in names):
            return {best: list(names)}
        chosen: dict[RunMetrics, list[str]] = {}
        for name in names:
            having = (run for run, found in self.runs if is_there(name, _known(found, names)))
            if (run := next(having, None) or self._going_on(queued)) is None:
                raise UsageError(self._nowhere(name))
            chosen.setdefault(run, []).append(name)
        return dict(sorted(chosen.items(), key=lambda each: each[0].number))

    def older_names(self) -> dict[str, int]:
        """Return what older runs can draw and the newest with numbers can not, each with the newest run that has it."""
        listed = self.newest()
        here = {metric.name for metric in self._found(listed).metrics}
        older: dict[str, int] = {}
        for run, found in self.runs:
            for metric in drawable(found.metrics):
                if run.number < listed.number and metric.count > 1 and metric.name not in here:
                    older.setdefault(metric.name, run.number)
        return older

    def _found(self, run: RunMetrics) -> Found:
        return next(found for each, found in self.runs if each is run)

    def _going_on(self, queued: Container[int]) -> RunMetrics | None:
        """Return the newest run that may still print something, or of which not everything is read."""
        going_on = [run for run, found in self.runs if not (found.finished and found.is_all)]
        return next((run for run in going_on if run.number not in queued), next(iter(going_on), None))

    def _nowhere(self, name: str) -> str:
        if len(self.runs) == 1 and not self.has_older:
            [(run, found)] = self.runs
            try:
                resolved([name], found, run.number)
            except UsageError as error:
                return str(error)
        there: dict[str, int] = {}
        for run, found in self.runs:
            for metric in drawable(found.metrics) or found.metrics:
                there.setdefault(metric.name, run.number)
        return nowhere(name, there, len(self.runs), has_older=self.has_older)


def _known(found: Found, names: Sequence[str]) -> list[str]:
    return [metric.name for metric in found.metrics if names or metric.count > 1]


async def search(newest_first: Iterable[RunMetrics], names: Iterable[str] = (), *, older: bool = False) -> Searched:
    """Look at the newest runs, until one has all of these names, or numbers at all where there are none.

    Args:
        older: look for a moment at what older ones have, too.
    """
    wanted, runs, left = tuple(names), list[tuple[RunMetrics, Found]](), iter(newest_first)
    until_s: float | None = None
    for run in islice(left, LOOKED_AT_RUNS):
        if until_s is not None and time.monotonic() > until_s:
            break
        found = await run.names(cadence(0.4))
        runs.append((run, found))
        known = _known(found, wanted)
        if until_s is None and known and all(is_there(name, known) for name in wanted):
            until_s = time.monotonic() + _OLDER_S
            if not older:
                break
    return Searched(runs, next(left, None) is not None)
