"""Which ranks the others wait for: those that wait least in collectives while the others wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb.client.instruments.late import late_among
from monarch_nb.client.top.ranks import KINDS, RankTop
from monarch_nb.ground.rank_sets import name_ranks


@dataclass(frozen=True)
class Straggler:
    """Who is waited for. As text the sentence that says so.

    Attributes:
        ranks: mostly one.
        share: of their time, in `line`, where they spend more of it than those that wait.
        kind: what they do there, as `Part` has it; "idle" when they run nothing.
        line: "train.py:41"; empty when it is not known.
        waiting: the ranks that wait. collective: in what, mostly. waiting_share: of their time.
    """

    ranks: tuple[int, ...]
    share: float
    kind: str
    line: str
    waiting: tuple[int, ...]
    collective: str
    waiting_share: float

    def __str__(self) -> str:
        is_one = len(self.ranks) == 1
        them = f"{name_ranks(self.ranks)} {'is' if is_one else 'are'} waited for"
        if self.kind == "idle":
            does = "it runs nothing" if is_one else "they run nothing"
        else:
            where = f"{self.line} ({KINDS.get(self.kind, self.kind)})" if self.line else KINDS.get(self.kind, self.kind)
            does = f"{self.share:.0%} of {'its' if is_one else 'their'} time in {where}"
        verb = "waits" if len(self.waiting) == 1 else "wait"
        return f"{them}: {does}; {name_ranks(self.waiting)} {verb} in {self.collective} ({self.waiting_share:.0%})"


def straggler_of(ranks: Sequence[RankTop]) -> Straggler | None:
    """Return who is waited for; None when nobody is: no rank waits, or all do, or half of them do not.

    Example:
    >>> from monarch_nb.client.top.ranks import Part
        >>> others = [RankTop(rank, "a", "running", (Part("collective", "all_reduce", 1.0, ""),)) for rank in (0, 1)]
        >>> late = RankTop(2, "a", "running", (Part("loader", "", 1.0, "train.py:41"),))
        >>> print(straggler_of([*others, late]))
        rank 2 is waited for: 100% of its time in train.py:41 (data loader); ranks 0-1 wait in all_reduce (100%)
    """
    seen = [rank for rank in ranks if rank.is_seen]
    waits = {rank.rank: rank.share("collective") for rank in seen}
    late_ones = late_among(waits)
    if not late_ones:
        return None
    late = [rank for rank in seen if rank.rank in late_ones]
    waiting = [rank for rank in seen if rank not in late]
    collectives: defaultdict[str, float] = defaultdict(float)
    for part in (part for rank in waiting for part in rank.parts if part.kind == "collective"):
        collectives[part.what] += part.share
    kind, line, share = _slow_part(late, waiting)
    return Straggler(
        ranks=late_ones,
        share=share,
        kind=kind,
        line=line,
        waiting=tuple(rank.rank for rank in waiting),
        collective=max(collectives, key=lambda name: collectives[name]),
        waiting_share=sum(waits[rank.rank] for rank in waiting) / len(waiting),
    )


def _slow_part(late: Sequence[RankTop], waiting: Sequence[RankTop]) -> tuple[str, str, float]:
    """Return what the late ranks do for longer than the others, at which line mostly, and for which part of their time:
    what all do makes nobody wait.

    Of each kind a rank tells one line only, and ranks may tell different ones, so kinds are compared first.
    """
    places: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in (part for rank in late for part in rank.parts if part.kind != "collective"):
        places[part.kind, part.line] += part.share / len(late)

    def longer(kind: str) -> float:
        own = sum(share for (of, _), share in places.items() if of == kind)
        return own - sum(rank.share(kind) for rank in waiting) / len(waiting)

    kind, line = max(places, key=lambda place: (longer(place[0]), places[place]))
    return kind, line, places[kind, line]
