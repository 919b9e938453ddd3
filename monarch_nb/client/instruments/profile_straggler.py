"""Which of the ranks that were profiled the others waited for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monarch_nb.client.instruments.late import late_among
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.instruments.shares import Shares


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
