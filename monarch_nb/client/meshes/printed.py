"""What the ranks of a mesh printed: their lines, and the numbers in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.curves.drawing import Drawing, newest_with
from monarch_nb.client.curves.names import nothing_named, resolved
from monarch_nb.client.curves.plot import Plot
from monarch_nb.client.logs.metrics import Columns, RunMetrics
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.meshes import past
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.holder import MeshHolder
from monarch_nb.client.meshes.looking import telling_why
from monarch_nb.client.pools.facts.infos import RunInfo
from monarch_nb.client.runs.needs import HeldMesh, Numbered
from monarch_nb.errors import RunNotFound, TargetError, UsageError
from monarch_nb.ground.code_names import run_name
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.lines.choosing import canonical


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

    def plot(
        self,
        *names: str,
        x: str = "",
        ranks: int | Iterable[int] | None = None,
        run: Numbered | int | Sequence[Numbered | int] | None = None,
    ) -> Plot:
        """Return curves of the numbers that ranks printed beside names, as `%mesh plot` draws them: rank 0's line, and
        a band over all ranks where they differ. A notebook's cell shows them live while the run goes on.

        Args:
            names: a chart for each.
            x: against the number of this name; by default the step of a line.
            ranks: only of these ranks.
            run: of that run, or of several over each other: Runs, RunInfos, or their numbers. By default of the newest
                that has one of the names.

        Returns:
            The curves: `print` draws them with characters, `svg()` and `save("loss.svg")` as a picture.

        Raises:
            UsageError: no name is given, or no line has one; the message has those that there are.
            RunNotFound: there was no run of that number, or none at all.

        Example:
            >>> mesh.plot("loss", "grad_norm")  # doctest: +SKIP
            >>> mesh.plot("loss", x="tokens", run=[12, 14]).save("loss.svg")  # doctest: +SKIP
        """
        wanted = [canonical(name) for name in names]
        several = run if isinstance(run, Sequence) else [] if run is None else [run]
        numbers = dict.fromkeys(each if isinstance(each, int) else each.number for each in several)
        runs = [self.numbers((), ranks, number) for number in numbers] or [self.numbers(wanted, ranks)]
        with telling_why(self.core, self.reservation.pool):
            if not names:
                raise UsageError(nothing_named(call(runs[0].names()), runs[0].number))
            return Plot(Drawing(runs, self.run_titles([each.number for each in runs]), wanted, canonical(x)))

    def run_titles(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return what runs are called; those that are forgotten by their numbers."""
        known = {info.number: run_name(info.number, info.cell_number, owner=info.owner) for info in self.past_runs()}
        return {number: known.get(number) or run_name(number) for number in numbers}

    def numbers(
        self, names: Sequence[str] = (), ranks: int | Iterable[int] | None = None, run: Numbered | int | None = None
    ) -> RunMetrics:
        """Return what reads the numbers of a run, by default of the newest that has these names: see `newest_with`.

        Raises:
            RunNotFound: there was no run of that number, or none at all.
        """
        with telling_why(self.core, self.reservation.pool):
            if run is not None:
                return self._numbers(run if isinstance(run, int) else run.number, ranks)
            past_runs = self.past_runs()
            if not past_runs:
                raise RunNotFound("nothing has run here yet: there are no numbers to draw")
            return call(newest_with(names, (self._numbers(info.number, ranks) for info in reversed(past_runs))))

    def _numbers(self, number: int, ranks: int | Iterable[int] | None) -> RunMetrics:
        return RunMetrics(self.id, self.core.connections, self.core.ranks_per_node, number, self._chosen(ranks))

    def _chosen(self, ranks: int | Iterable[int] | None) -> tuple[int, ...]:
        if ranks is None:
            return self.ranks
        chosen = (ranks,) if isinstance(ranks, int) else tuple(sorted(set(ranks)))
        if missing := [rank for rank in chosen if rank not in self.ranks]:
            raise TargetError(f"{name_ranks(missing)} not in {self!r}")
        return chosen
