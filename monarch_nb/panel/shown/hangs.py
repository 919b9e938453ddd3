"""Ranks that wait for others that will not come: who, where and for whom, in the sentence that a cell has as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
from monarch_nb.client.runs.watching.mismatches import are_unlike
from monarch_nb.client.runs.watching.waits import (
    APART_AFTER_S,
    Standstill,
    progress_of,
    wait_sentence,
    waiting_in,
)
from monarch_nb.config import cadence

GONE_AFTER_S = cadence(2.0)
"""So long ranks wait in the same place, while others have ended the cell or made calls that do not match, before that
is called a hang."""


@dataclass(frozen=True)
class Hang:
    """Why a run does not go on. ranks: those that wait."""

    text: str
    ranks: tuple[int, ...]


@dataclass
class Hangs:
    """Looks at meshes again and again: what comes and goes while ranks work is none."""

    _seen: dict[str, Standstill] = field(default_factory=dict)
    """By run."""

    def find(self, ranks: Mapping[int, RankInfo], runs: Iterable[RunInfo], now: float) -> Hang | None:
        """Return the hang of the oldest run that does not go on, if any.

        Args:
            ranks: those that answer.
        """
        for run in runs:
            here = [ranks[rank] for rank in run.ranks if rank in ranks and ranks[rank].run_id == run.run_id]
            where = {info.rank: info.where for info in here if info.where is not None and info.waits_in}
            waiting = waiting_in(where)
            if run.done or not waiting:
                self._seen.pop(run.run_id, None)
                continue
            lasts_s = self._seen.setdefault(run.run_id, Standstill()).lasts_s(progress_of(where), now)
            gone = {rank: _fate(rank, run, ranks) for rank in run.finished}
            is_unlike = are_unlike(where)
            if (gone or is_unlike) and lasts_s >= GONE_AFTER_S:
                return Hang(wait_sentence(where, gone), tuple(waiting))
            is_apart = len(set(waiting.values())) > 1 and len(waiting) == len(run.ranks)
            if is_apart and lasts_s >= APART_AFTER_S:
                return Hang(f"{wait_sentence(where, {})}: for each other, it seems", tuple(waiting))
        return None

    def keep(self, runs: Iterable[str]) -> None:
        """Forget all runs but these."""
        self._seen = {run: self._seen[run] for run in runs if run in self._seen}


def _fate(rank: int, run: RunInfo, ranks: Mapping[int, RankInfo]) -> str:
    """Return what became of a rank that has ended the cell."""
    info = ranks.get(rank)
    if rank in run.stopped:
        return "was interrupted"
    if rank not in run.failed:
        return "finished the cell"
    if info is None or info.state == "dead":
        return "died"
    return f"raised {info.failure.partition(':')[0].partition(' ')[0]}" if info.failure else "was restarted"
