"""What a mesh has to say of its ranks' memory."""

from __future__ import annotations

from typing import Any, Protocol

from monarch_nb.client.comparing.asking import Asking
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.debug.stops import StopInfo
from monarch_nb.client.memory.report import MemoryReport, RankMemory, released_line
from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.run import Run
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2

_ANSWERS = "monarch_nb.worker.memory.answers"
_NAMES = "globals(), locals()"


class _Mesh(HeldMesh, Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def select(self, ranks: Any) -> Any: ...

    def status(self) -> list[RankInfo]: ...

    def unfinished(self) -> list[RunInfo]: ...


class TellsMemory:
    """A part of `Mesh`: where the memory of its ranks is."""

    def memory(self: _Mesh, *, when_idle: bool = False, release_gpus: bool = False) -> MemoryReport:
        """Return how much memory each rank uses, and its largest tensors with the names that hold them.

        On ranks that have stopped at a breakpoint, the names are those that are seen there. Of ranks that compute only
        the main memory is known.

        Args:
            when_idle: wait until the ranks have finished what they compute, so that their tensors are known, too.
            release_gpus: have the ranks give the GPU memory back in which no tensors are, to others on the same GPU.
                Ranks that compute give nothing back.

        Example:
            >>> print(mesh.memory())  # doctest: +SKIP
        """
        infos = {info.rank: info for info in self.status() if info.is_alive and info.rank in self.ranks}
        stops: dict[int, StopInfo] = {}
        for stop in Debugger(self).stops():
            stops.setdefault(stop.rank, stop)
        computing = [rank for rank, info in infos.items() if info.run_id and rank not in stops and not when_idle]
        asked = [rank for rank in infos if rank not in computing]

        def pull(ranks: tuple[int, ...], code: str) -> dict[int, bytes]:
            spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=code))
            return dict(zip(ranks, self.select(ranks)._finish_quietly(spec, "memory"), strict=True))

        told = Asking(self, stops, pull, _ANSWERS).ask(asked, f"now({_NAMES}, release={release_gpus})") if asked else {}
        ranks = [
            RankMemory.told(rank, told[rank]) if rank in told else RankMemory(rank, infos[rank].memory_bytes)
            for rank in sorted(infos)
        ]
        problems = []
        if away := [rank for rank in self.ranks if rank not in infos]:
            problems.append(f"{name_ranks(away)}: dead or out of reach")
        if computing:
            verb = "computes" if len(computing) == 1 else "compute"
            problems.append(
                f"{name_ranks(computing)} {verb}: their tensors are not known; --when-idle waits for the end"
            )
        if release_gpus:
            problems.append(released_line(ranks))
        return MemoryReport(tuple(ranks), tuple(problems))

    def memory_of(self: _Mesh, run: Run) -> MemoryReport:
        """Return what ranks held when an allocation failed in a run, with the variables of the functions that failed.

        It can be asked for once, until another run fails. Ranks on which no allocation failed are left out.

        Args:
            run: that has ended.

        Example:
            >>> print(mesh.memory_of(run))  # doctest: +SKIP
        """
        computing = {rank for other in self.unfinished() for rank in other.ranks}
        idle = {info.rank for info in self.status() if info.is_alive} - computing
        asked = [failure.rank for failure in run.failures if failure.rank in idle]

        def pull(ranks: tuple[int, ...], code: str) -> dict[int, bytes]:
            return dict(zip(ranks, self.select(ranks).pull(code), strict=True))

        told = Asking(self, {}, pull, _ANSWERS).ask(asked, f"at_failure({run.id!r})") if asked else {}
        ranks = [RankMemory.told(rank, answer) for rank, answer in told.items() if answer is not None]
        return MemoryReport(tuple(ranks))
