"""How the ranks of a run ended: of those that only came to the end, nothing is made until somebody looks at it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from monarch_nb.branches.folding import ranks_of_equal
from monarch_nb.client.connections import events
from monarch_nb.ground.ranges import Ranges
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import allocator_pb2 as pb


class RunResults(Mapping[int, events.Result]):
    """Results by rank, in the order in which they came. Thousands of ranks may end alike, and nobody look at them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._made: dict[int, events.Result] = {}
        self._notable: dict[int, events.Result] = {}
        self._alike: list[_Alike] = []
        self._ranks_alike = Ranges()
        self._came: list[Ranges | tuple[int]] = []
        self._count = 0
        self._lost: dict[tuple[str, str], list[int]] = {}

    def add_alike(self, ranks: Ranges, equal: pb.EqualResults, *, may_print_later: bool) -> None:
        """Ranks have come to the end, and there is nothing else to say of them.

        Args:
            ranks: some of those that `equal` names, of which nothing has come before.
        """
        self._alike.append(_Alike(ranks, equal, may_print_later))
        self._ranks_alike |= ranks
        self._came.append(ranks)
        self._count += len(ranks)

    def left_of(self, ranks: Ranges) -> Ranges:
        """Return those of some ranks that have no result."""
        left = ranks - self._ranks_alike
        return Ranges.of(rank for rank in left if rank not in self._notable) if self._notable else left

    def lost(self, rank: int, node: str, what: str) -> str:
        """A rank says that something of it was lost; return what there is to say of all that have said so."""
        self._lost.setdefault((node, what), []).append(rank)
        return "; ".join(f"{name_ranks(ranks)} on {node}: {what}" for (node, what), ranks in self._lost.items())

    def ranks_ok(self) -> list[int]:
        """Return the ranks that have come to the end."""
        return [*self._ranks_alike, *(rank for rank, result in self._notable.items() if result.outcome == "ok")]

    @property
    def notable(self) -> list[events.Result]:
        """Those of ranks of which there is something to say."""
        return list(self._notable.values())

    def __getitem__(self, rank: int) -> events.Result:
        if rank not in self._made:
            alike = next((alike for alike in reversed(self._alike) if rank in alike.ranks), None)
            if alike is None:
                raise KeyError(rank)
            self._made[rank] = alike.of(rank)
        return self._made[rank]

    def __setitem__(self, rank: int, result: events.Result) -> None:
        if rank not in self:
            self._came.append((rank,))
            self._count += 1
        self._made[rank] = self._notable[rank] = result

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(list(self._came))  # more may come meanwhile, on the background loop

    def __len__(self) -> int:
        return self._count  # asked at every message of a run

    def __contains__(self, rank: object) -> bool:
        return rank in self._notable or rank in self._ranks_alike


class _Alike:
    """Ranks that have come to the end alike."""

    def __init__(self, ranks: Ranges, equal: pb.EqualResults, may_print_later: bool) -> None:
        self.ranks = ranks
        self._equal, self._may_print_later = equal, may_print_later
        self._durations_s: dict[int, float] = {}

    def of(self, rank: int) -> events.Result:
        """Return what listeners are told of one of them."""
        if not self._durations_s:
            self._durations_s = dict(zip(ranks_of_equal(self._equal), self._equal.durations_s, strict=True))
        return events.Result(rank, "ok", self._durations_s[rank], may_print_later=self._may_print_later)
