"""What the ranks of a mesh wrote in all its runs: run after run, from files and from the archive."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path

from monarch_nb.allocator.logs.archive import Archive, Entry
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.state.runs import Mesh

Written = tuple[int, RankFiles]
"""The number of a run, and what a rank wrote in it."""


class MeshLogs:
    """The outputs of a mesh as they are now; what is archived meanwhile is neither missing nor there twice.

    Args:
        runs: the directory of its outputs.
        archive: of the old ones.
    """

    def __init__(self, mesh: Mesh, runs: Path, archive: Archive) -> None:
        self._mesh, self._runs, self._archive = mesh, runs, archive
        self._loose = stored_outputs(runs)
        # Of the runs that share an output only a rank's newest can have written to it there.
        self._known = {(run.output, rank): run.number for run in mesh.runs.values() for rank in run.ranks}

    def ranks(self, wanted: Iterable[int]) -> list[int]:
        """Return the ranks that are wanted; all when none is named."""
        return [rank for rank in sorted(self._mesh.ranks) if not wanted or rank in wanted]

    def loose(self, ranks: Iterable[int], number: int = 0, outputs: Iterable[int] | None = None) -> list[Written]:
        """Return what some ranks wrote in the outputs that have files, or in some of these, of one run or of all: by
        run, then by rank."""
        ranks = list(ranks)
        looked_at = self._loose if outputs is None else outputs
        files = (RankFiles(self._runs, output, rank, self._archive) for output in looked_at for rank in ranks)
        written = [(one.run_number(self._known), one) for one in files]
        return sorted((one for one in written if number in (0, one[0])), key=_place)

    def all(self, ranks: Iterable[int], number: int = 0) -> Iterator[Written]:
        """Yield everything that some ranks wrote, of one run or of all: by run, then by rank."""
        return heapq.merge(*(self.of_rank(rank, number) for rank in ranks), key=_place)

    def of_rank(self, rank: int, number: int = 0, *, newest_first: bool = False) -> Iterator[Written]:
        """Yield what a rank wrote, in the order of runs."""
        loose = self.loose([rank], number)
        if newest_first:
            loose.reverse()
        seen = {files.output for _, files in loose}
        entries = self._archive.of_rank(rank, number, newest_first=newest_first)
        archived = ((entry.number, self._of(entry)) for entry in entries if entry.output not in seen)
        return heapq.merge(loose, archived, key=_place, reverse=newest_first)

    def _of(self, entry: Entry) -> RankFiles:
        return RankFiles(self._runs, entry.output, entry.rank, self._archive, entry)


def _place(written: Written) -> tuple[int, int]:
    return written[0], written[1].rank
