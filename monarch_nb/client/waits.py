"""Who waits for whom: one sentence for a run whose ranks wait in a collective for others that will not come. Pure."""

from collections.abc import Mapping

from monarch_nb.client.events import Result
from monarch_nb.client.infos import waits_in
from monarch_nb.proto import run_pb2
from monarch_nb.shape import name_ranks


def explain_waits(results: Mapping[int, Result], where: Mapping[int, run_pb2.Where]) -> str:
    """Return the sentence and what to do, or an empty text when no rank waits in a collective.

    Example: `ranks 0-6 wait in all_reduce (train.py:41); rank 7 raised KeyError: interrupt to free them`.
    """
    sentence = _sentence(results, where, "waits", "wait")
    return sentence and f"{sentence}: interrupt (■, or %mesh interrupt) to free them; nothing in memory is lost"


def explain_past_waits(results: Mapping[int, Result], where: Mapping[int, run_pb2.Where]) -> str:
    """Return the sentence for those who read it when it is over."""
    return _sentence(results, where, "waited", "waited")


def _sentence(results: Mapping[int, Result], where: Mapping[int, run_pb2.Where], waits: str, wait: str) -> str:
    waiting = {rank: place for rank, at in where.items() if (place := waits_in(at))}
    gone = {rank: _what_happened(result) for rank, result in sorted(results.items())}
    return wait_sentence(waiting, gone, waits, wait)


def wait_sentence(waiting: Mapping[int, str], gone: Mapping[int, str], waits: str = "waits", wait: str = "wait") -> str:
    """Return the sentence itself; empty when no rank waits.

    Args:
        waiting: ranks and what each waits in: "all_reduce (train.py:41)".
        gone: ranks that will not come, and what each did: "raised KeyError".
        waits, wait: the verb, of one and of several.
    """
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
