"""What the ranks of a mesh wrote in its runs: run after run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.state.runs import Mesh

Written = tuple[int, RankFiles]
"""The number of a run, and what a rank wrote in it."""


class MeshLogs:
    """The outputs of a mesh as they are now.

    Args:
        runs: the directory of its outputs.
    """

    def __init__(self, mesh: Mesh, runs: Path) -> None:
        self._mesh, self._runs = mesh, runs
        self._stored = stored_outputs(runs)
        # Of the runs that share an output only a rank's newest can have written to it there.
        self._known = {(run.output, rank): run.number for run in mesh.runs.values() for rank in run.ranks}

    def ranks(self, wanted: Iterable[int]) -> list[int]:
        """Return the ranks that are wanted; all when none is named."""
        return [rank for rank in sorted(self._mesh.ranks) if not wanted or rank in wanted]

    def written(self, ranks: Iterable[int], number: int = 0, outputs: Iterable[int] | None = None) -> list[Written]:
        """Return what some ranks wrote, in one run or in all, in some outputs or in all: by run, then by rank."""
        ranks = list(ranks)
        looked_at = self._stored if outputs is None else outputs
        if number and number in self._stored:  # it is that run's own, and has all that this run wrote
            looked_at = [output for output in looked_at if output == number]
        files = (RankFiles(self._runs, output, rank) for output in looked_at for rank in ranks)
        written = ((one.run_number(self._known), one) for one in files)
        found = [one for one in written if number in (0, one[0])]
        return sorted(found, key=lambda one: (one[0], one[1].rank))
