"""What is said of a profile: where the time of each rank went, and which operators took most. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_nb.client.instruments.profile_straggler import ProfileStraggler, straggler_among
from monarch_nb.ground.rank_sets import counted, listed, name_ranks
from monarch_nb.times import duration
from monarch_nb.worker.instruments.shares import Operator, Shares

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
        cut_s = told.get("cut_s")
        cut = f"the trace is too long: its last {duration(cut_s)} are cut off" if cut_s else ""
        for sentence in (told.get("problem", ""), told.get("note", ""), cut):
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
