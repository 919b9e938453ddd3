"""`Mesh.memory`: figures by rank, and the largest tensors; ranks that are alike are one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.client.comparing.differing import Asking, pull_quietly
from monarch_nb.client.debug.debugger import Debugger, StopInfo
from monarch_nb.client.instruments.profiles import aligned
from monarch_nb.client.runs.run import Run
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.sizes import binary_size
from monarch_nb.worker.memory import Found, GpuFigures, Tensor

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

MOST_ROWS = 10
"""A table shows so many tensors; `ranks[…].held.largest` has more."""
MOST_GROUPS = 4
"""So many groups of ranks have a table of their own."""
MOST_FIGURES = 16
"""Of more groups the figures are told together."""
_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank.

    Attributes:
        rank: which it is.
        pss: what the process uses of main memory; of pages that several processes share, its part.
        greatest_rss: what it used at most so far, with all of the shared pages; 0 where nobody knows.
        gpu: of its GPU; None if it has none, or has not used it.
        held: the tensors; None if the rank computes.
        released: what it gave back of its GPU, if it was to.
    """

    rank: int
    pss: int
    greatest_rss: int = 0
    gpu: GpuFigures | None = None
    held: Found | None = None
    released: int = 0

    @classmethod
    def told(cls, rank: int, answer: Mapping[str, Any]) -> RankMemory:
        """Return what a rank has answered."""
        gpu, (tensors, *rest) = answer["gpu"], answer["held"]
        found = Found(tuple(Tensor(*each) for each in tensors), *rest)
        figures = None if gpu is None else GpuFigures(*gpu)
        return cls(rank, answer["pss"], answer["greatest_rss"], figures, found, answer.get("released", 0))


@dataclass(frozen=True)
class MemoryReport:
    """Where the memory of ranks is. `Mesh.memory` returns it; `str` of it is what `%mesh memory` shows.

    Attributes:
        ranks: each rank that answered.
        problems: what else is to be said, such as which ranks compute.

    Example:
        >>> report = mesh.memory()  # doctest: +SKIP
        >>> report.ranks[0].held.largest[0].name  # doctest: +SKIP
        'model.layers.0.weight'
    """

    ranks: tuple[RankMemory, ...]
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [*aligned(self.figure_rows())]
        for title, rows in self.tensor_tables():
            parts += [title, *aligned(rows)]
        return "\n".join([*parts, *self.notes()])

    __repr__ = __str__

    def figure_rows(self) -> list[tuple[str, ...]]:
        """Return the table of figures, with its head."""
        groups = self._alike()
        if len(groups) > MOST_FIGURES:
            groups = [[each for each in self.ranks if (each.held is None) == computes] for computes in (False, True)]
        groups = [group for group in groups if group]
        head = ("rank", "allocated", "reserved", "fragmentation", "largest free", "greatest", "GPU free")
        rows = [head, *[tuple(_row(group)) for group in groups]]
        of_main = [("main memory (PSS)", "greatest (RSS)"), *[_main(group) for group in groups]]
        if all(each.gpu is None for each in self.ranks):
            rows = [(row[0],) for row in rows]
        return [(*row, *more) for row, more in zip(rows, of_main, strict=True)]

    def notes(self) -> list[str]:
        """Return what the tables do not say."""
        more = sum(group[0].held is not None for group in self._alike()) - MOST_GROUPS
        said = f"{counted(more, 'group')} of ranks more, with other tensors: mesh.memory().ranks has all"
        return [*self.problems, *([said] if more > 0 else [])]

    def tensor_tables(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        """Return the largest tensors of each group of ranks that are alike: a title, and a table with its head."""
        tables = []
        groups = [group for group in self._alike() if group[0].held is not None]
        for group in groups[:MOST_GROUPS]:
            held = group[0].held
            if held is None or not held.largest:
                continue
            rows: list[tuple[str, ...]] = [("size", "tensor", "what", "also")]
            rows += [
                (binary_size(each.size_bytes), _cut(each.name or "(no name)"), each.facts, _cut(", ".join(each.others)))
                for each in held.largest[:MOST_ROWS]
            ]
            tables.append((f"{name_ranks(each.rank for each in group)}: {_how_much(held, group[0].gpu)}", rows))
        return tables

    def _alike(self) -> list[list[RankMemory]]:
        """Return the ranks in groups that hold the same tensors."""
        groups: dict[object, list[RankMemory]] = {}
        for each in self.ranks:
            key = None if each.held is None else (each.gpu is None, each.held.largest, each.held.tensors)
            groups.setdefault(key, []).append(each)
        return list(groups.values())


def released_line(ranks: Sequence[RankMemory]) -> str:
    """Return what ranks gave back of their GPUs, and what holds the rest.

    Example:
        ranks 0-3 gave back 12 GiB of GPU memory. Tensors hold 5.1 GiB: …
    """
    using = [each for each in ranks if each.gpu is not None]
    if not using:
        return "no rank that answered uses a GPU: there is no GPU memory to give back"
    names = name_ranks(each.rank for each in using)
    gave = f"{names} gave back {_span([each.released for each in using])} of GPU memory"
    kept = [each.gpu.reserved for each in using if each.gpu is not None and each.gpu.reserved]
    if not kept:
        return f"{gave}; no tensors are left there. %mesh restart also gives back what CUDA itself takes"
    return (
        f"{gave}. Blocks with tensors hold {_span(kept)}: del what you do not need, and give back again. "
        "%mesh restart gives back all, and loses all variables"
    )


def _row(group: Sequence[RankMemory]) -> Iterable[str]:
    yield format_ranks(each.rank for each in group)
    gpus = [each.gpu for each in group if each.gpu is not None]
    figures: Sequence[Callable[[GpuFigures], int]] = (
        *(lambda gpu: gpu.allocated, lambda gpu: gpu.reserved, lambda gpu: gpu.fragmentation),
        *(lambda gpu: gpu.largest_free, lambda gpu: gpu.greatest, lambda gpu: gpu.free),
    )
    for figure in figures:
        yield _span([figure(gpu) for gpu in gpus])


def _main(group: Sequence[RankMemory]) -> tuple[str, str]:
    greatest = [each.greatest_rss for each in group if each.greatest_rss]
    return _span([each.pss for each in group if each.pss]), _span(greatest)


def _span(sizes: Sequence[int]) -> str:
    """Return a size, or from the least to the greatest of ranks."""
    if not sizes:
        return ""
    least, most = binary_size(min(sizes)), binary_size(max(sizes))
    return least if least == most else f"{least} to {most}"


def _how_much(held: Found, gpu: GpuFigures | None) -> str:
    said = [f"{counted(held.tensors, 'tensor')} with a name" + _on(held.size_bytes)]
    if held.unnamed:
        said.append(f"{held.unnamed:,} without one" + _on(held.unnamed_bytes))
    if gpu is not None and held.is_whole:
        rest = gpu.allocated - held.size_bytes.get("cuda", 0) - held.unnamed_bytes.get("cuda", 0)
        if rest > 0:
            said.append(f"{binary_size(rest)} of the GPU is held by the backward's graph and libraries")
    if not held.is_whole:
        said.append("there are too many values: not all were looked at")
    return ", ".join(said)


def _on(sizes: Mapping[str, int]) -> str:
    return "".join(
        f" ({', '.join(f'{binary_size(each)} {device}' for device, each in sizes.items())})" if sizes else ""
    )


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_CHARACTERS else f"{text[: _NAME_CHARACTERS - 1]}…"


_ANSWERS = "monarch_nb.worker.memory"
_NAMES = "globals(), locals()"


def memory(mesh: Mesh, *, when_idle: bool = False, release_gpus: bool = False) -> MemoryReport:
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
    infos = {info.rank: info for info in mesh.status() if info.is_alive and info.rank in mesh.ranks}
    stops: dict[int, StopInfo] = {}
    for stop in Debugger(mesh).stops():
        stops.setdefault(stop.rank, stop)
    computing = [rank for rank, info in infos.items() if info.run_id and rank not in stops and not when_idle]
    asked = [rank for rank in infos if rank not in computing]
    pull = partial(pull_quietly, mesh, "memory")
    told = Asking(mesh, stops, pull, _ANSWERS).ask(asked, f"now({_NAMES}, release={release_gpus})") if asked else {}
    ranks = [
        RankMemory.told(rank, told[rank]) if rank in told else RankMemory(rank, infos[rank].memory_bytes)
        for rank in sorted(infos)
    ]
    problems = []
    if away := [rank for rank in mesh.ranks if rank not in infos]:
        problems.append(f"{name_ranks(away)}: dead or out of reach")
    if computing:
        verb = "computes" if len(computing) == 1 else "compute"
        problems.append(f"{name_ranks(computing)} {verb}: their tensors are not known; --when-idle waits for the end")
    if release_gpus:
        problems.append(released_line(ranks))
    return MemoryReport(tuple(ranks), tuple(problems))


def memory_of(mesh: Mesh, run: Run) -> MemoryReport:
    """Return what ranks held when an allocation failed in a run, with the variables of the functions that failed.

    It can be asked for once, until another run fails. Ranks on which no allocation failed are left out.

    Args:
        run: that has ended.

    Example:
        >>> print(mesh.memory_of(run))  # doctest: +SKIP
    """
    computing = {rank for other in mesh.unfinished() if other.holds_ranks for rank in other.ranks}
    idle = {info.rank for info in mesh.status() if info.is_alive} - computing
    asked = [failure.rank for failure in run.failures if failure.rank in idle]

    def pull(ranks: tuple[int, ...], code: str) -> dict[int, bytes]:
        return dict(zip(ranks, mesh.select(ranks).pull(code), strict=True))

    told = Asking(mesh, {}, pull, _ANSWERS).ask(asked, f"at_failure({run.id!r})") if asked else {}
    ranks = [RankMemory.told(rank, answer) for rank, answer in told.items() if answer is not None]
    return MemoryReport(tuple(ranks))
