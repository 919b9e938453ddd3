"""Who waits for whom: one sentence for a run whose ranks wait in a collective for others that will not come. Pure."""

from collections.abc import Mapping

from monarch_nb.client.events import Result
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
    waiting: dict[str, list[int]] = {}
    for rank, at in where.items():
        if at.state == run_pb2.Where.STATE_COLLECTIVE:
            line = f" ({at.line})" if at.line else ""
            waiting.setdefault(f"in {at.collective}{line}", []).append(rank)
    if not waiting:
        return ""
    waiters = ", ".join(
        f"{name_ranks(ranks)} {waits if len(ranks) == 1 else wait} {place}" for place, ranks in sorted(waiting.items())
    )
    gone: dict[str, list[int]] = {}
    for rank, result in sorted(results.items()):
        gone.setdefault(_what_happened(result), []).append(rank)
    others = ", ".join(f"{name_ranks(ranks)} {what}" for what, ranks in gone.items())
    return f"{waiters}; {others}"


def _what_happened(result: Result) -> str:
    if result.failure is None:
        return "finished the cell"
    if result.outcome == "error":
        return f"raised {result.failure.name}"
    return {"interrupted": "interrupted", "died": "died", "cancelled": "never ran it"}[result.outcome]
