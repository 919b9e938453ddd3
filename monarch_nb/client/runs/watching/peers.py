"""Which peers ranks wait for that send to one rank, or receive from one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2

_SENDS = re.compile("i?send")
_HAS_ONE_PEER = re.compile("i?send|i?recv")
_MOST_TOLD = 4


def has_one_peer(call: run_pb2.Call) -> bool:
    """Return whether a call is between two ranks of its group, and the others have no part in it."""
    return _HAS_ONE_PEER.match(call.collective) is not None


def described(call: run_pb2.Call) -> str:
    """Return "all_reduce of float32[4]"."""
    return f"{call.collective} of {call.operands}" if call.operands else call.collective


def explain_peers(where: Mapping[int, run_pb2.Where]) -> str:
    """Return who waits for which peer, and in which call that one is instead; empty when no rank waits for one.

    Of ranks that wait for one another in a row, only the one at its end is told: the others wait because of it.

    Args:
        where: the ranks are.

    Example: `rank 0 receives float32[4] from rank 2, which is in all_reduce of float32[4]`.
    """
    calls = _calls(where)
    circle = next(filter(None, (_circle(_row(rank, calls)) for rank in calls)), ())
    if circle:
        return f"{name_ranks(circle)} wait for each other: {_listed(_told([rank], calls[rank]) for rank in circle)}"
    alike: dict[tuple[str, str, int], list[int]] = {}
    for rank, call in calls.items():
        if call.peer not in calls:
            alike.setdefault((call.collective, call.operands, call.peer), []).append(rank)
    return _listed(_told(ranks, calls[ranks[0]]) + _instead(where, calls[ranks[0]].peer) for ranks in alike.values())


def wait_for_each_other(where: Mapping[int, run_pb2.Where]) -> bool:
    """Return whether a rank waits for a peer that can never come: the peer waits for this rank too, in a call between
    the two, in a row of such calls, or in a collective of a group that this rank is in."""
    calls = _calls(where)
    return any(_circle(row) or _joins(row, where) for row in (_row(rank, calls) for rank in calls))


def _calls(where: Mapping[int, run_pb2.Where]) -> dict[int, run_pb2.Call]:
    """Return the calls of ranks that wait for one peer, which is known."""
    return {rank: at.call for rank, at in sorted(where.items()) if at.HasField("call") and at.call.HasField("peer")}


def _row(rank: int, calls: Mapping[int, run_pb2.Call]) -> list[int]:
    """Return a rank, whom it waits for, whom that one waits for, and so on; none of them twice but the last."""
    row = [rank]
    while row[-1] in calls and row[-1] not in row[:-1]:
        call = calls[row[-1]]
        other = calls.get(call.peer)
        if other is not None and other.peer == row[-1] and _sends(other) != _sends(call):
            break  # these two meet
        row.append(call.peer)
    return row


def _circle(row: list[int]) -> tuple[int, ...]:
    return tuple(sorted(row[row.index(row[-1]) : -1]))


def _joins(row: list[int], where: Mapping[int, run_pb2.Where]) -> bool:
    """Return whether the end of a row waits in a collective that needs the others of the row."""
    last = where.get(row[-1])
    if last is None or not last.call.group or has_one_peer(last.call):
        return False
    return any(last.call.group in where[rank].calls for rank in row[:-1])


def _told(ranks: list[int], call: run_pb2.Call) -> str:
    verb, word = ("send", "to") if _sends(call) else ("receive", "from")
    what = f" {call.operands}" if call.operands else ""
    return f"{name_ranks(ranks)} {verb}{'s' if len(ranks) == 1 else ''}{what} {word} rank {call.peer}"


def _instead(where: Mapping[int, run_pb2.Where], peer: int) -> str:
    at = where.get(peer)
    return f", which is in {described(at.call)}" if at is not None and at.call.collective else ""


def _sends(call: run_pb2.Call) -> bool:
    return _SENDS.match(call.collective) is not None


def _listed(said: Iterable[str]) -> str:
    texts = list(said)
    return ", ".join(texts[:_MOST_TOLD]) + (", …" if len(texts) > _MOST_TOLD else "")
