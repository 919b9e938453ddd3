"""How the ranks of a run ended: of those that only came to the end, nothing is made until somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, MutableMapping

from monarch_nb.client.connections import events
from monarch_nb.proto import allocator_pb2 as pb


class RunResults(MutableMapping[int, events.Result]):
    """Results by rank, in the order in which they came. Thousands of ranks may end alike, and nobody look at them."""

    def __init__(self) -> None:
        self._known: dict[int, events.Result | _Alike] = {}
        self._notable: dict[int, events.Result] = {}

    def add_alike(self, ranks: Iterable[int], equal: pb.EqualResults, *, may_print_later: bool) -> None:
        """Ranks have come to the end, and there is nothing else to say of them.

        Args:
            ranks: some of those that `equal` names.
        """
        self._known.update(dict.fromkeys(ranks, _Alike(equal, may_print_later)))

    @property
    def notable(self) -> list[events.Result]:
        """Those of ranks of which there is something to say."""
        return list(self._notable.values())

    def __getitem__(self, rank: int) -> events.Result:
        found = self._known[rank]
        if isinstance(found, _Alike):
            found = self._known[rank] = found.of(rank)
        return found

    def __setitem__(self, rank: int, result: events.Result) -> None:
        self._known[rank] = self._notable[rank] = result

    def __delitem__(self, rank: int) -> None:
        del self._known[rank]
        self._notable.pop(rank, None)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._known))  # more may come meanwhile, on the background loop

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, rank: object) -> bool:
        return rank in self._known

    def keys(self) -> KeysView[int]:
        return self._known.keys()


class _Alike:
    """Ranks that have come to the end alike."""

    def __init__(self, equal: pb.EqualResults, may_print_later: bool) -> None:
        self._equal, self._may_print_later = equal, may_print_later
        self._durations_s: dict[int, float] = {}

    def of(self, rank: int) -> events.Result:
        """Return what listeners are told of one of them."""
        if not self._durations_s:
            self._durations_s = dict(zip(self._equal.ranks, self._equal.durations_s, strict=True))
        return events.Result(rank, "ok", self._durations_s[rank], may_print_later=self._may_print_later)
