"""Whose calls of collectives do not match: another one, other tensors, or one that others have yet to make. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_nb.client.runs.watching.peers import described, explain_peers, has_one_peer, wait_for_each_other
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.proto import run_pb2

_DEFAULT = "the default group"


def explain_mismatch(where: Mapping[int, run_pb2.Where]) -> str:
    """Return what does not match in the groups in which ranks wait; empty when all is alike, or not known. Where ranks
    wait for a peer of a send or a receive, it is told who for whom: the numbers of calls say little then.

    Args:
        where: the ranks are; those that have ended the run are idle.

    Example: `call 17 in the default group is all_reduce of float32[1024] on rank 0, all_gather of float32[8] on ranks
    1-3`.
    """
    if peers := explain_peers(where):
        return peers
    told = (_unlike(name, where) or _ahead(name, where) or _over(name, where) for name in _groups(where))
    return "; ".join(filter(None, told))


def are_unlike(where: Mapping[int, run_pb2.Where]) -> bool:
    """Return whether ranks are in calls of one group that have the same number and are not alike, or wait for peers
    that wait for them: no call of one rank can then end, wherever the others go."""
    return wait_for_each_other(where) or any(_unlike(name, where) for name in _groups(where))


def _groups(where: Mapping[int, run_pb2.Where]) -> list[str]:
    """Return the groups in which ranks wait."""
    names = {at.call.group for at in where.values() if at.call.group}
    return sorted(names, key=lambda name: (name != _DEFAULT, name))


def _counts(name: str, where: Mapping[int, run_pb2.Where]) -> dict[int, list[int]]:
    """Return the ranks by how many calls they have made in a group."""
    counts: dict[int, list[int]] = {}
    for rank, at in sorted(where.items()):
        if name in at.calls:
            counts.setdefault(at.calls[name], []).append(rank)
    return counts


def _unlike(name: str, where: Mapping[int, run_pb2.Where]) -> str:
    counts, called = _counts(name, where), _called(name, where)
    if len(counts) > 1 or len(called) < 2:
        return ""
    return f"call {next(iter(counts), '?')} in {name} is {_listed(called)}"


def _ahead(name: str, where: Mapping[int, run_pb2.Where]) -> str:
    counts = _counts(name, where)
    if len(counts) < 2:
        return ""
    (most, first), *others = sorted(counts.items(), reverse=True)
    if [count for count, _ in others] == [most - 1] and all(_has_ended(where[rank]) for rank in others[0][1]):
        return ""  # that they have ended the run without this call says it all
    behind = ", ".join(f"{name_ranks(ranks)} {count:,}" for count, ranks in others)
    is_one = len(first) == 1
    return f"{name_ranks(first)} {'is' if is_one else 'are'} ahead in {name}: {counted(most, 'call')}, {behind}"


def _over(name: str, where: Mapping[int, run_pb2.Where]) -> str:
    """Say who waits in a call that ranks have made that have ended the run: Gloo ends it where enough bytes came."""
    counts = _counts(name, where)
    over = [rank for ranks in counts.values() for rank in ranks if _has_ended(where[rank])]
    called = {call: ranks for call, ranks in _called(name, where).items() if not has_one_peer(where[ranks[0]].call)}
    if len(counts) != 1 or not over or not called:
        return ""
    number, told = next(iter(counts)), _listed(called)
    return f"call {number} in {name} is {told}, and over on {name_ranks(over)}: shapes or dtypes may differ"


def _has_ended(at: run_pb2.Where) -> bool:
    return at.state == run_pb2.Where.STATE_IDLE


def _called(name: str, where: Mapping[int, run_pb2.Where]) -> dict[str, list[int]]:
    """Return the ranks that wait in a group, by what each has called. Two ranks that are known to meet may have calls
    of their own."""
    called: dict[str, list[int]] = {}
    for rank, at in sorted(where.items()):
        if at.call.group == name and not at.call.HasField("peer"):
            called.setdefault(described(at.call), []).append(rank)
    return called


def _listed(called: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{call} on {name_ranks(ranks)}" for call, ranks in called.items())
