"""`Mesh.profile_of`: the profiles of ranks come here, and become one report and one trace."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.ground.rank_sets import counted, listed, name_ranks
from monarch_nb.times import duration
from monarch_nb.worker.instruments.traces import Operator, Shares

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

LEAST_WAIT = 0.25
"""Others wait when they spend so much of their time in collectives, and so much more than the one that is late."""
_NEAR = 0.25
"""Who is at most this part of the distance away from the one that waits least is late, too."""


def late_among(waits: Mapping[int, float]) -> tuple[int, ...]:
    """Return the ranks that the others wait for; none when no rank waits, or all do, or half of them do not.

    Args:
        waits: the share of its time that each rank waits in collectives.

    Example:
        >>> late_among({0: 0.9, 1: 0.1, 2: 0.8})
        (1,)
    """
    if len(waits) < 2:
        return ()
    least, *others = sorted(waits.values())
    typical = median(others)
    if typical < LEAST_WAIT or typical - least < LEAST_WAIT:
        return ()
    late = tuple(rank for rank, share in waits.items() if share <= least + _NEAR * (typical - least))
    return late if 2 * len(late) <= len(waits) else ()


@dataclass(frozen=True)
class ProfileStraggler:
    """Who was waited for. As text the sentence that says so.

    Attributes:
        ranks: mostly one. waiting: the others.
        wait, waiting_wait: the shares of their time in communication.
        does: what takes more of the time of `ranks` than of the others': "compute" or "idle". share: of their time.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    wait: float
    waiting_wait: float
    does: str
    share: float

    def __str__(self) -> str:
        was = "was" if len(self.ranks) == 1 else "were"
        waited = f"{name_ranks(self.waiting)} waited ({self.waiting_wait:.0%} in communication)"
        they = "it" if len(self.ranks) == 1 else "they"
        does = f"{they} computed" if self.does == "compute" else f"{they} {was} idle"
        return f"{name_ranks(self.ranks)} {was} waited for: {does} {self.share:.0%} of the time, {waited}"


def straggler_among(shares: Mapping[int, Shares]) -> ProfileStraggler | None:
    """Return who was waited for; None where the shares do not make it clear.

    Args:
        shares: of the time of each rank.

    Example:
        >>> print(straggler_among({0: Shares(0.2, 0.6, 0, 0.2), 1: Shares(0.2, 0.1, 0, 0.7)}))
        rank 1 was waited for: it was idle 70% of the time, rank 0 waited (60% in communication)
    """
    late = late_among({rank: each.communication for rank, each in shares.items()})
    if not late:
        return None
    own = _mean([shares[rank] for rank in late])
    others = _mean([each for rank, each in shares.items() if rank not in late])
    computes, idles = own.compute + own.overlap, own.idle
    is_compute = computes - others.compute - others.overlap > idles - others.idle
    return ProfileStraggler(
        ranks=late,
        waiting=tuple(rank for rank in shares if rank not in late),
        wait=own.communication,
        waiting_wait=others.communication,
        does="compute" if is_compute else "idle",
        share=computes if is_compute else idles,
    )


def _mean(shares: list[Shares]) -> Shares:
    return Shares(*(sum(column) / len(shares) for column in zip(*shares, strict=True)))


MOST_ROWS = 12
"""A table shows so many operators; `operators` has more."""
_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class RankProfile:
    """Where the time of one rank went.

    Attributes:
        rank, host: which it is, and where.
        seconds: how long it was recorded.
        steps: how many steps that were, after one of warm-up; 0 when it is no whole number of steps.
        shares: of the time. on_device: whether they are those of the GPU.
        operators: those with the most time of their own, in the recorded time.
    """

    rank: int
    host: str
    seconds: float
    steps: int
    shares: Shares
    on_device: bool
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class ProfileReport:
    """Where the time of a run went. `Mesh.profile_of` returns it; `str` of it is what the cell shows.

    Attributes:
        ranks: those that were profiled.
        trace: the file with what they did, for Perfetto (ui.perfetto.dev) or TensorBoard; None if there is none, as
            where no operator ran.
        problems: why ranks have no profile, and what one should know of the others.
        others: so many ranks of the run were not profiled.

    Example:
        >>> report = mesh.profile_of(run)  # doctest: +SKIP
        >>> report.ranks[0].shares.idle, report.operators[0].name  # doctest: +SKIP
        (0.31, 'aten::addmm')
    """

    ranks: tuple[RankProfile, ...]
    trace: Path | None
    problems: tuple[str, ...] = ()
    others: int = 0

    @property
    def straggler(self) -> ProfileStraggler | None:
        """Who of the ranks was waited for; None where the shares do not make it clear."""
        return straggler_among({each.rank: each.shares for each in self.ranks})

    @property
    def operators(self) -> list[Operator]:
        """The operators with the most time of their own, of an average rank."""
        return averaged([each.operators for each in self.ranks])

    def __str__(self) -> str:
        return "\n".join(
            [self.title, *aligned(self.rank_rows()), *self.rank_notes(), *aligned(self.operator_rows()), *self.notes()]
        )

    @property
    def is_empty(self) -> bool:
        """Whether no operator ran, so that there is nothing but a title."""
        return not any(each.operators for each in self.ranks)

    __repr__ = __str__

    @property
    def title(self) -> str:
        """What was recorded."""
        if not self.ranks:
            return "nothing was profiled"
        steps = {each.steps for each in self.ranks}
        longest = max(each.seconds for each in self.ranks)
        who = name_ranks(each.rank for each in self.ranks)
        if self.is_empty:
            return f"profile of {who}: no operator of torch ran in {duration(longest)}"
        if len(steps) > 1 or steps == {0}:
            return f"profile of {who}: {duration(longest)}"
        each_ms = 1000 * longest / max(steps)
        return f"profile of {who}: {counted(max(steps), 'step')} of {each_ms:,.{0 if each_ms >= 100 else 1}f} ms"

    def rank_rows(self) -> list[tuple[str, ...]]:
        """Return the table of ranks, with its head."""
        rows: list[tuple[str, ...]] = [("rank", "time of", "compute", "communication", "overlap", "idle")]
        late = self.straggler.ranks if self.straggler else ()
        for each in self.ranks:
            where = f"{each.rank} ({each.host}){' ←' if each.rank in late else ''}"
            rows.append((where, "GPU" if each.on_device else "CPU", *(f"{share:.1%}" for share in each.shares)))
        return [] if self.is_empty else rows

    def rank_notes(self) -> list[str]:
        """Return what the table of ranks means."""
        if self.straggler is None:
            return []
        return [f"of these ranks, {self.straggler}" if self.others else str(self.straggler)]

    def operator_rows(self) -> list[tuple[str, ...]]:
        """Return the table of operators, with its head: per step, where the profile is of steps."""
        if self.is_empty:
            return []
        most = max((each.steps for each in self.ranks), default=0)
        steps, per = (most, " per step") if all(each.steps == most > 0 for each in self.ranks) else (1, "")
        whole = sum(each.self_us for each in self.operators) or 1.0
        of = "GPU time" if all(each.on_device for each in self.ranks) else "own time"
        rows: list[tuple[str, ...]] = [("operator", f"{of}{per}", "share", f"calls{per}")]
        for each in self.operators[:MOST_ROWS]:
            name = each.name if len(each.name) <= _NAME_CHARACTERS else f"{each.name[: _NAME_CHARACTERS - 1]}…"
            calls = each.calls / steps
            rows.append((name, _time(each.self_us / steps), f"{each.self_us / whole:.1%}", f"{calls:,.3g}"))
        return rows

    def notes(self) -> list[str]:
        """Return what the tables do not say."""
        return list(self.problems)


def averaged(of_ranks: Sequence[Sequence[Operator]]) -> list[Operator]:
    """Return operators of an average rank, those with the most time first.

    Example:
        >>> averaged([[Operator("mm", 4.0, 2)], [Operator("mm", 2.0, 2), Operator("add", 5.0, 1)]])
        [Operator(name='mm', self_us=3.0, calls=2), Operator(name='add', self_us=2.5, calls=0)]
    """
    found: dict[str, tuple[float, int]] = {}
    for operators in of_ranks:
        for each in operators:
            self_us, calls = found.get(each.name, (0.0, 0))
            found[each.name] = (self_us + each.self_us, calls + each.calls)
    count = max(1, len(of_ranks))
    mean = [Operator(name, self_us / count, calls // count) for name, (self_us, calls) in found.items()]
    return sorted(mean, key=lambda each: -each.self_us)


def rank_profiles(found: Mapping[int, Mapping[str, Any]]) -> tuple[RankProfile, ...]:
    """Return what ranks found, as far as they found something."""
    return tuple(
        RankProfile(
            rank,
            told["host"],
            told["seconds"],
            told["steps"],
            Shares(*told["shares"]),
            told["on_device"],
            tuple(Operator(*each) for each in told["operators"]),
        )
        for rank, told in sorted(found.items())
        if not told.get("problem")
    )


def said(found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return what is to be said of ranks that found nothing, or less, the same of several once."""
    groups: dict[str, list[int]] = {}
    for rank, told in sorted(found.items()):
        for sentence in (told.get("problem", ""), told.get("note", "")):
            if sentence:
                groups.setdefault(sentence, []).append(rank)
    return [f"{name_ranks(ranks)}: {sentence}" for sentence, ranks in groups.items()]


def clock_line(hosts: Iterable[str], error_s: float) -> str:
    """Return how well the clocks of hosts are aligned."""
    return f"the clocks of {listed(hosts)} are aligned to ±{1000 * error_s:.1f} ms"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:,.{2 if microseconds < 10_000 else 1 if microseconds < 100_000 else 0}f} ms"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


_LOOKS = 8


class Clock(NamedTuple):
    """How far a clock is ahead of this computer's, and by how much that may be wrong."""

    ahead_ns: float
    error_ns: float


def clocks_of(boots: Mapping[int, str], look: Callable[[int], int]) -> dict[str, Clock]:
    """Return the clocks of the hosts of ranks, by what processes with the same clock have in common.

    A rank is asked for its time some times. The answer that came fastest counts: it was made in the middle between
    question and answer, give or take half of that time. When all ranks have one clock, nobody is asked.

    Args:
        boots: of each rank, what is the same for all that have the same clock.
        look: returns the time of a rank, in nanoseconds.
    """
    first_of: dict[str, int] = {}
    for rank, boot in sorted(boots.items()):
        first_of.setdefault(boot, rank)
    if len(first_of) == 1:
        return {boot: Clock(0.0, 0.0) for boot in first_of}
    return {boot: min((_look(rank, look) for _ in range(_LOOKS)), key=_error) for boot, rank in first_of.items()}


def _error(clock: Clock) -> float:
    return clock.error_ns


def _look(rank: int, look: Callable[[int], int]) -> Clock:
    asked_ns = time.time_ns()
    there_ns = look(rank)
    half_ns = (time.time_ns() - asked_ns) / 2
    return Clock(there_ns - asked_ns - half_ns, half_ns)  # no time since 1970 as a float: those are 256 ns apart


_TIME = '{"ts":'
_LEVEL = 3


def merge(path: Path, traces: Iterable[tuple[bytes, float]], facts: Mapping[str, Any]) -> None:
    """Write one trace file, in the Trace Event Format, gzipped. It appears when it is whole.

    Args:
        path: where.
        traces: of each rank its lines, gzipped, and what is added to their times, in microseconds.
        facts: what the file says besides the events.

    Raises:
        OSError: it can not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".monarch-nb-{path.name}")
    try:
        with gzip.open(partial, "wt", _LEVEL, "utf-8") as file:
            file.write(json.dumps(dict(facts), separators=(",", ":"))[:-1] + ',"traceEvents":[\n')
            before = ""
            for lines, added_us in traces:
                for line in _moved(lines, added_us):
                    file.write(before + line)
                    before = ",\n"
            file.write("\n]}\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _moved(lines: bytes, added_us: float) -> Iterator[str]:
    with gzip.open(io.BytesIO(lines), "rt", encoding="utf-8") as file:
        for each in file:
            line = each.rstrip("\n")
            if added_us and line.startswith(_TIME):
                time_us, rest = line[len(_TIME) :].split(",", 1)
                line = f"{_TIME}{float(time_us) + added_us:.3f},{rest}"
            yield line


TORCH_PROFILE, MEMORY_HISTORY = "torch-profile", "memory-history"
DIRECTORY = "traces"
_NOBODY = "no rank that was to record answers"
_NOTHING_LEFT = "no rank that was to record has left anything: was it killed, or did it end with os._exit()?"


def profile_of(mesh: Mesh, run: Run, to: str | os.PathLike[str] = DIRECTORY) -> ProfileReport:
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
    found = found_on(mesh, run, TORCH_PROFILE)
    traced = {rank: told for rank, told in sorted(found.items()) if "trace" in told}
    problems = said(found) or ([] if traced else [_nobody(run)])
    if not traced:
        return ProfileReport((), None, tuple(problems))
    clocks = clocks_of(
        {rank: told["boot"] for rank, told in traced.items()},
        lambda rank: mesh.select(rank).pull("__import__('time').time_ns()")[0],
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


def found_in(mesh: Mesh, run: Run, instrument: str) -> dict[int, Any]:
    """Return what an instrument found in a run that has ended, by rank. It can be asked for once. Ranks that are
    dead, compute something else now, or found nothing are left out.

    Args:
        instrument: by which `instruments` names it: "watch".

    Example:
        >>> run = mesh.run("train()", instruments={"watch": {"what": ["loss"]}})  # doctest: +SKIP
        >>> mesh.found_in(run, "watch")[0]["steps"]  # doctest: +SKIP
        100
    """
    return found_on(mesh, run, instrument)


def memory_history_of(
    mesh: Mesh, run: Run, to: str | os.PathLike[str] = DIRECTORY
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
    found = found_on(mesh, run, MEMORY_HISTORY)
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
