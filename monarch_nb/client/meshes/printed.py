"""What the ranks of a mesh printed: their lines, and the numbers in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.logs.metrics import Columns, Found, RunMetrics
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.meshes import past
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.holder import MeshHolder
from monarch_nb.client.meshes.looking import telling_why
from monarch_nb.client.pools.infos import RunInfo
from monarch_nb.client.runs.needs import HeldMesh, Numbered
from monarch_nb.errors import RunNotFound, TargetError, UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.lines import choosing

LOOKED_AT_RUNS = 20
"""Where no run is named, so many of the newest are looked at for numbers."""
_LOOK_BUDGET_S = 0.4


class Printed:
    """The part of a mesh that has what was printed."""

    id: str
    core: MeshCore
    reservation: MeshHolder[Any]

    @property
    def ranks(self) -> tuple[int, ...]:
        """See Mesh."""
        raise NotImplementedError

    def past_runs(self, tracebacks_of: int = 0) -> list[RunInfo]:
        """See Mesh."""
        raise NotImplementedError

    def logs(
        self,
        ranks: int | Iterable[int] | None = None,
        lines: int | None = None,
        run: Numbered | int | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[LogRecord]:
        """Yield everything that the ranks wrote, from their files, run after run.

        Args:
            ranks: only these ranks.
            lines: only so many of the newest lines of each rank.
            run: only this run: a Run, a RunInfo, or its number.
            follow: go on with new lines as they come, until Ctrl-C, or until `run` has finished.

        Returns:
            An iterator over LogRecords, with `rank`, `stream`, `run` and `text`.

        Raises:
            RunNotFound: there was no run of that number.

        Example:
            >>> for record in mesh.logs(ranks=[3], lines=20):  # doctest: +SKIP
            ...     print(record.rank, record.text, end="")
        """
        batches = self.log_batches(ranks, lines, run, follow=follow)
        return itertools.chain.from_iterable(batches)

    def log_batches(
        self,
        ranks: int | Iterable[int] | None = None,
        lines: int | None = None,
        run: Numbered | int | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[Iterable[LogRecord]]:
        """Like `logs`, but yield batches of records that can be folded: all records, or those that came together."""
        return past.log_batches(cast(HeldMesh, self), self._chosen(ranks), lines, run, follow=follow)

    def metrics(
        self,
        names: str | Sequence[str] | None = None,
        ranks: int | Iterable[int] | None = None,
        run: Numbered | int | None = None,
    ) -> Columns:
        """Return the numbers that ranks printed beside names, as in `loss: 2.31`.

        Args:
            names: only these names. ranks: only these ranks.
            run: a Run, a RunInfo, or its number; by default the newest run that has such numbers.

        Returns:
            Columns of equal length, with a row for each line that has a number: "rank", "step" and a column for each
            name. A value is None where a line has none. `pandas.DataFrame` takes the result as it is.

        Raises:
            UsageError: no line has the name. The message has the nearest names.
            RunNotFound: there was no run of that number.

        Example:
            >>> pandas.DataFrame(mesh.metrics("loss")).pivot(index="step", columns="rank")  # doctest: +SKIP
        """
        wanted = [names] if isinstance(names, str) else names
        numbers = self.numbers(wanted or (), ranks, run)
        chosen = None if wanted is None else resolved(wanted, call(numbers.names()), numbers.number)
        with telling_why(self.core, self.reservation.pool):
            return call(numbers.columns(chosen))

    def numbers(
        self, names: Sequence[str] = (), ranks: int | Iterable[int] | None = None, run: Numbered | int | None = None
    ) -> RunMetrics:
        """Return what reads the numbers of a run, by default of the newest that has all of these names. Where none has
        all it is the newest that has most of them, and where none has any the newest that has numbers at all.

        Raises:
            RunNotFound: there was no run of that number, or none at all.
        """
        with telling_why(self.core, self.reservation.pool):
            if run is not None:
                return self._numbers(run if isinstance(run, int) else run.number, ranks)
            past_runs = self.past_runs()[: -LOOKED_AT_RUNS - 1 : -1]
            if not past_runs:
                raise RunNotFound("nothing has run here yet: there are no numbers to draw")
            best, most = self._numbers(past_runs[0].number, ranks), -1
            for info in past_runs:
                numbers = self._numbers(info.number, ranks)
                found = call(numbers.names(_LOOK_BUDGET_S))
                known = [metric.name for metric in found.metrics if names or metric.count > 1]
                there = sum(_is_there(name, known) for name in names)
                if known and there > most:
                    best, most = numbers, there
                if known and there == len(names):
                    break
            return best

    def _numbers(self, number: int, ranks: int | Iterable[int] | None) -> RunMetrics:
        return RunMetrics(self.id, self.core.connections, self.core.ranks_per_node, number, self._chosen(ranks))

    def _chosen(self, ranks: int | Iterable[int] | None) -> tuple[int, ...]:
        if ranks is None:
            return self.ranks
        chosen = (ranks,) if isinstance(ranks, int) else tuple(sorted(set(ranks)))
        if missing := [rank for rank in chosen if rank not in self.ranks]:
            raise TargetError(f"{name_ranks(missing)} not in {self!r}")
        return chosen


def _is_there(name: str, known: Iterable[str]) -> bool:
    try:
        return choosing.find(name, known) is not None
    except choosing.Ambiguous:
        return True


def resolved(wanted: Iterable[str], found: Found, number: int) -> list[str]:
    """Return the names that are meant.

    Raises:
        UsageError: no line of the run has one; the message has the nearest ones.
    """
    known = [metric.name for metric in found.metrics]
    chosen = []
    for name in wanted:
        try:
            meant = choosing.find(name, known)
        except choosing.Ambiguous as several:
            raise UsageError(f"{name} may be {' or '.join(several.args)}: say which") from None
        if meant is None:
            raise UsageError(not_there(name, known, number, unlisted_lines=found.unlisted_lines))
        chosen.append(meant)
    return chosen


def not_there(name: str, known: Sequence[str], number: int, *, unlisted_lines: int = 0) -> str:
    """Return what to say of a name that no line has."""
    run = run_name(number)
    if not known:
        return f"no line of {run} has a number with a name beside it, as in loss: 2.31; --run N draws another run's"
    near = choosing.nearest(name, known)
    nearest = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(known[:8])}"
    more = f"; {unlisted_lines:,} lines are of too many kinds to be listed" if unlisted_lines else ""
    return f"no line of {run} has {name!r}; {nearest}{more}; --run N draws another run's"
