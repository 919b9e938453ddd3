"""`Mesh.profile_of`: the profiles of ranks come here, and become one report and one trace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.client.instruments.clocks import Clock, clocks_of
from monarch_nb.client.instruments.merging import merge
from monarch_nb.client.instruments.profile_report import ProfileReport, clock_line, rank_profiles, said

if TYPE_CHECKING:
    from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
    from monarch_nb.client.runs.run import Run

TORCH_PROFILE, MEMORY_HISTORY = "torch-profile", "memory-history"
DIRECTORY = "traces"
_NOBODY = "no rank that was to record answers"
_NOTHING_LEFT = "no rank that was to record has left anything: was it killed, or did it end with os._exit()?"


class _Mesh(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def select(self, ranks: Any) -> Any: ...

    def status(self) -> list[RankInfo]: ...

    def unfinished(self) -> list[RunInfo]: ...


class Profiles:
    """A part of `Mesh`: what its ranks' profilers have recorded."""

    def profile_of(self: _Mesh, run: Run, to: str | os.PathLike[str] = DIRECTORY) -> ProfileReport:
        """Return where the time of a run went that was profiled, and write its trace. It can be asked for once.

        Args:
            run: that has ended, also by failing, with the instrument "torch-profile".
            to: the directory here for the trace: one gzipped file of all ranks that were profiled.

        Raises:
            OSError: the trace can not be written.

        Example:
            >>> run = mesh.run("train()", instruments={"torch-profile": {"steps": 3}})  # doctest: +SKIP
            >>> print(mesh.profile_of(run))  # doctest: +SKIP
        """
        found = found_on(self, run, TORCH_PROFILE)
        traced = {rank: told for rank, told in sorted(found.items()) if "trace" in told}
        problems = said(found) or ([] if traced else [_nobody(run)])
        if not traced:
            return ProfileReport((), None, tuple(problems))
        clocks = clocks_of(
            {rank: told["boot"] for rank, told in traced.items()},
            lambda rank: self.select(rank).pull("__import__('time').time_ns()")[0],
        )
        if len(clocks) > 1:
            hosts = dict.fromkeys(told["host"] for told in traced.values())
            problems.append(clock_line(hosts, 2e-9 * max(clock.error_ns for clock in clocks.values())))
        report = ProfileReport(rank_profiles(traced), None, tuple(problems), len(run.ranks) - len(traced))
        if report.is_empty:
            return report
        path = _free(Path(to), f"run{run.number}", ".pt.trace.json.gz")
        merge(path, ((told["trace"], _added_us(told, traced, clocks)) for told in traced.values()), _facts(traced))
        return replace(report, trace=path)

    def found_in(self: _Mesh, run: Run, instrument: str) -> dict[int, Any]:
        """Return what an instrument found in a run that has ended, by rank. It can be asked for once. Ranks that are
        dead, compute something else now, or found nothing are left out.

        Args:
            instrument: by which `instruments` names it: "watch", "deterministic".

        Example:
            >>> run = mesh.run("train()", instruments={"watch": {"what": ["loss"]}})  # doctest: +SKIP
            >>> mesh.found_in(run, "watch")[0]["steps"]  # doctest: +SKIP
            100
        """
        return found_on(self, run, instrument)

    def memory_history_of(
        self: _Mesh, run: Run, to: str | os.PathLike[str] = DIRECTORY
    ) -> tuple[list[Path], tuple[str, ...]]:
        """Write what ranks recorded of their GPUs' memory in a run: snapshots for pytorch.org/memory_viz.

        Args:
            run: that has ended, also by failing, with the instrument "memory-history".
            to: the directory here for the snapshots, one of each rank that recorded.

        Returns:
            The files, and why other ranks have none.

        Raises:
            OSError: they can not be written.

        Example:
            >>> run = mesh.run("train()", instruments={"memory-history": {"ranks": [0]}})  # doctest: +SKIP
            >>> mesh.memory_history_of(run)  # doctest: +SKIP
            ([PosixPath('traces/run7-rank0-memory.pickle')], ())
        """
        found = found_on(self, run, MEMORY_HISTORY)
        paths = []
        for rank, told in sorted(found.items()):
            if "snapshot" in told:
                Path(to).mkdir(parents=True, exist_ok=True)
                paths.append(_free(Path(to), f"run{run.number}-rank{rank}-memory", ".pickle"))
                paths[-1].write_bytes(told["snapshot"])
        return paths, tuple(said(found) or ([] if paths else [_nobody(run)]))


def _added_us(told: Mapping[str, Any], traced: Mapping[int, Mapping[str, Any]], clocks: Mapping[str, Clock]) -> float:
    """Return what is added to the times of a rank's trace, so that they are those of the first rank's."""
    first = next(iter(traced.values()))
    ahead_ns: float = clocks[told["boot"]].ahead_ns - clocks[first["boot"]].ahead_ns
    return float(told["base_ns"] - first["base_ns"] - ahead_ns) / 1000


def _facts(traced: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    rank, first = next(iter(traced.items()))
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": first["base_ns"],
        "distributedInfo": {"rank": rank, "world_size": first["world_size"]},
    }


def _nobody(run: Run) -> str:
    return _NOTHING_LEFT if run.is_script else _NOBODY


def _free(directory: Path, name: str, ending: str) -> Path:
    """Return a path that no file has."""
    names = (f"{name}{again}{ending}" for again in ("", *(f"-{count}" for count in range(2, 10_000))))
    return next(path for each in names if not (path := directory / each).exists())
