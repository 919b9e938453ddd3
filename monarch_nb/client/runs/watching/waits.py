"""Who waits for whom: one sentence for a run whose ranks wait in a collective for others that do not come. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch_nb.client.connections.events import Result
from monarch_nb.client.pools.facts.infos import waits_in
from monarch_nb.client.runs.watching.mismatches import explain_mismatch
from monarch_nb.config import cadence
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2

APART_AFTER_S = cadence(6.0)
"""So long ranks wait in the same places, while others are elsewhere, before it is said that they do."""
_MAX_PLACES = 4
NOBODY: Mapping[int, str] = {}


@dataclass
class Standstill:
    """Looks at where a run's ranks wait, again and again: what comes and goes while they work is no hang.

    Attributes:
        looks: how many in a row have found the same.
    """

    looks: int = 0
    _places: Mapping[int, object] = field(default_factory=dict)
    _since_s: float = 0.0

    def lasts_s(self, waiting: Mapping[int, object], now_s: float) -> float:
        """Return how long the ranks that wait now have waited in these places.

        Args:
            waiting: ranks and what each waits in.
            now_s: of any clock that only goes on.
        """
        if waiting != self._places:
            self._places, self._since_s, self.looks = waiting, now_s, 0
        self.looks += 1
        return now_s - self._since_s


def waiting_in(where: Mapping[int, run_pb2.Where]) -> dict[int, str]:
    """Return the ranks that wait, and what each waits in."""
    return {rank: place for rank, at in where.items() if (place := waits_in(at))}


def progress_of(where: Mapping[int, run_pb2.Where]) -> dict[int, object]:
    """Return what changes when ranks go on, though they may wait at the same line at each look: they have called more
    collectives by then."""
    return {rank: (at.state, at.collective, at.line, dict(at.calls)) for rank, at in where.items()}


def are_apart(waiting: Mapping[int, str], ranks: int) -> bool:
    """Return whether some of so many ranks wait and others are elsewhere, be it in another collective."""
    return bool(waiting) and (len(waiting) < ranks or len(set(waiting.values())) > 1)


def explain_waits(
    results: Mapping[int, Result], where: Mapping[int, run_pb2.Where], left_out: Mapping[int, str] = NOBODY
) -> str:
    """Return the sentence and what to do, or an empty text when no rank waits in a collective.

    Args:
        results: of the ranks that have ended the run. where: the others are.
        left_out: ranks that it is not on, and why: "not in this run".

    Example: `ranks 0-6 wait in all_reduce (train.py:41); rank 7 raised KeyError: interrupt to free them`.
    """
    sentence = _sentence(results, where, left_out, "waits", "wait", "is", "are")
    return sentence and f"{sentence}: interrupt (■, or %mesh interrupt) to free them; nothing in memory is lost"


def explain_past_waits(
    results: Mapping[int, Result], where: Mapping[int, run_pb2.Where], left_out: Mapping[int, str] = NOBODY
) -> str:
    """Return the sentence for those who read it when it is over."""
    return _sentence(results, where, left_out, "waited", "waited", "was", "were")


def _sentence(
    results: Mapping[int, Result], where: Mapping[int, run_pb2.Where], left_out: Mapping[int, str], *verbs: str
) -> str:
    gone = {rank: _what_happened(result) for rank, result in sorted(results.items())} | dict(left_out)
    return wait_sentence(where, gone, *verbs)


def wait_sentence(
    where: Mapping[int, run_pb2.Where],
    gone: Mapping[int, str],
    waits: str = "waits",
    wait: str = "wait",
    is_at: str = "is",
    are_at: str = "are",
) -> str:
    """Return the sentence itself, with what does not match; empty when no rank waits.

    Args:
        where: ranks are that may wait.
        gone: ranks that will not come, and what each did: "raised KeyError".
        waits, wait, is_at, are_at: the verbs, of one and of several.
    """
    waiting = waiting_in(where)
    elsewhere = {rank: at.line for rank, at in sorted(where.items()) if rank not in waiting and at.line}
    places = _grouped(elsewhere)
    if len(places) > _MAX_PLACES:
        places = {"other lines": list(elsewhere)}
    at = [f"{name_ranks(ranks)} {is_at if len(ranks) == 1 else are_at} at {place}" for place, ranks in places.items()]
    sentence = _waiters(waiting, gone, waits, wait)
    if not sentence:
        return ""
    sentence += f"{', ' if gone else '; '}{', '.join(at)}" if at else ""
    return "; ".join(filter(None, (sentence, explain_mismatch(where))))


def _waiters(waiting: Mapping[int, str], gone: Mapping[int, str], waits: str, wait: str) -> str:
    places, fates = _grouped(waiting), _grouped(gone)
    if not places:
        return ""
    waiters = ", ".join(
        f"{name_ranks(ranks)} {waits if len(ranks) == 1 else wait} in {place}"
        for place, ranks in sorted(places.items())
    )
    others = ", ".join(f"{name_ranks(ranks)} {what}" for what, ranks in fates.items())
    return "; ".join(filter(None, (waiters, others)))


def _grouped(ranks: Mapping[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, what in ranks.items():
        groups.setdefault(what, []).append(rank)
    return groups


def _what_happened(result: Result) -> str:
    if result.failure is None:
        return "finished the cell"
    if result.outcome == "error":
        return f"raised {result.failure.name}"
    return {"interrupted": "interrupted", "died": "died", "cancelled": "never ran it"}[result.outcome]
