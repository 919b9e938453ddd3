"""Whose calls of collectives do not match: another one, other tensors, or one that others have yet to make; which peers
ranks wait for; and whether they wait in vain, for a rank whose code has failed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.mismatches import Called, what_differs
from monarch_nb.proto import run_pb2

_SENDS = re.compile("i?send")
_HAS_ONE_PEER = re.compile("i?send|i?recv")
_MOST_TOLD = 4


def has_one_peer(call: run_pb2.Call) -> bool:
    """Return whether a call is between two ranks of its group, and the others have no part in it."""
    return _HAS_ONE_PEER.match(call.collective) is not None


def has_ended(at: run_pb2.Where) -> bool:
    """Return whether a rank has ended the run: its call is the last that it has made."""
    return at.state == run_pb2.Where.STATE_IDLE


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
    """Return the calls of ranks that wait for one peer, which is known, by its number in the mesh."""
    calls = {}
    for rank, at in sorted(where.items()):
        if not has_ended(at) and at.call.HasField("peer"):
            peer = _in_mesh(at.call.peer, rank, where)
            if peer is not None:
                calls[rank] = run_pb2.Call(collective=at.call.collective, operands=at.call.operands, peer=peer)
    return calls


def _in_mesh(peer: int, rank: int, where: Mapping[int, run_pb2.Where]) -> int | None:
    """Return which rank of the mesh a peer is that `rank` knows by its number in their world: this may be of some ranks
    of the mesh. None where that is not known."""
    at = where[rank]
    if not at.world_size:
        return peer  # an older version
    same = (other for other, there in where.items() if (there.world_size, there.world_rank) == (at.world_size, peer))
    return next(same, peer if at.world_rank == rank else None)


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
    if last is None or has_ended(last) or not last.call.group or has_one_peer(last.call):
        return False
    return any(last.call.group in where[rank].calls for rank in row[:-1])


def _told(ranks: list[int], call: run_pb2.Call) -> str:
    verb, word = ("send", "to") if _sends(call) else ("receive", "from")
    what = f" {call.operands}" if call.operands else ""
    return f"{name_ranks(ranks)} {verb}{'s' if len(ranks) == 1 else ''}{what} {word} rank {call.peer}"


def _instead(where: Mapping[int, run_pb2.Where], peer: int) -> str:
    at = where.get(peer)
    is_in = at is not None and not has_ended(at) and at.call.collective
    return f", which is in {described(at.call)}" if at is not None and is_in else ""


def _sends(call: run_pb2.Call) -> bool:
    return _SENDS.match(call.collective) is not None


def _listed(said: Iterable[str]) -> str:
    texts = list(said)
    return ", ".join(texts[:_MOST_TOLD]) + (", …" if len(texts) > _MOST_TOLD else "")


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


def last_calls(where: Mapping[int, run_pb2.Where]) -> dict[int, Called]:
    """Return the last calls of ranks that have ended the run, as far as they are known and have partners alike."""
    known = {rank: at for rank, at in where.items() if has_ended(at) and at.calls.get(at.call.group)}
    return {
        rank: Called(at.call.group, at.world_size, at.calls[at.call.group], described(at.call))
        for rank, at in known.items()
        if not has_one_peer(at.call)
    }


def _groups(where: Mapping[int, run_pb2.Where]) -> list[str]:
    """Return the groups in which ranks wait."""
    names = {at.call.group for at in where.values() if at.call.group and not has_ended(at)}
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
    differs = what_differs(called)
    told = f"call {next(iter(counts), '?')} in {name} is {_listed_calls(called)}{f': {differs}' if differs else ''}"
    over = [rank for ranks in called.values() for rank in ranks if has_ended(where[rank])]
    return f"{told}; it is over on {name_ranks(over)}: do not trust its result there" if over else told


def _ahead(name: str, where: Mapping[int, run_pb2.Where]) -> str:
    counts = _counts(name, where)
    if len(counts) < 2:
        return ""
    (most, first), *others = sorted(counts.items(), reverse=True)
    if [count for count, _ in others] == [most - 1] and all(has_ended(where[rank]) for rank in others[0][1]):
        return ""  # that they have ended the run without this call says it all
    behind = ", ".join(f"{name_ranks(ranks)} {count:,}" for count, ranks in others)
    is_one = len(first) == 1
    return f"{name_ranks(first)} {'is' if is_one else 'are'} ahead in {name}: {counted(most, 'call')}, {behind}"


def _over(name: str, where: Mapping[int, run_pb2.Where]) -> str:
    """Say who waits in a call that ranks have made that have ended the run, where nobody knows what these have called:
    Gloo ends it where enough bytes came."""
    counts = _counts(name, where)
    waiting = {rank: at for rank, at in where.items() if not has_ended(at)}
    over = [rank for ranks in counts.values() for rank in ranks if rank not in waiting]
    called = {call: ranks for call, ranks in _called(name, waiting).items() if not has_one_peer(where[ranks[0]].call)}
    if len(counts) != 1 or not called or all(where[rank].call.group == name for rank in over):
        return ""
    number, told = next(iter(counts)), _listed_calls(called)
    return f"call {number} in {name} is {told}, and over on {name_ranks(over)}: shapes or dtypes may differ"


def _called(name: str, where: Mapping[int, run_pb2.Where]) -> dict[str, list[int]]:
    """Return the ranks that wait in a group, or have ended the run with a call of it, by what each has called. Two
    ranks that are known to meet may have calls of their own."""
    called: dict[str, list[int]] = {}
    for rank, at in sorted(where.items()):
        has_a_peer = at.call.HasField("peer") or (has_ended(at) and has_one_peer(at.call))
        if at.call.group == name and not has_a_peer:
            called.setdefault(described(at.call), []).append(rank)
    return called


def _listed_calls(called: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{call} on {name_ranks(ranks)}" for call, ranks in called.items())


_INIT = "init_process_group"


def wait_in_vain(
    where: Mapping[int, run_pb2.Where],
    failed: Collection[int],
    left: Collection[int],
    ranks: Collection[int],
    size: int,
) -> bool:
    """Return whether every rank that goes on waits for one that has failed, or for one that waits so, and nobody else
    uses the groups that are broken to free them. False as well where that can not be known.

    A rank that has failed can still be joined while another cell, a debugger, an actor or a task is at work there.

    Args:
        where: what the ranks of the mesh execute, and where.
        failed: the ranks whose code has failed. left: those that the run goes on on. ranks: those of the run.
        size: of the mesh.
    """
    if not left or not where.keys() >= {*left} or any(where[rank].busy_besides for rank in left):
        return False
    world = _world(where, left, ranks, size)
    done = {rank for rank, at in where.items() if at.state == run_pb2.Where.STATE_IDLE and not at.busy_besides}
    lost, waiting = done.intersection(failed), {rank for rank in world if _waits(world[rank])}
    while more := {rank for rank in waiting - lost if lost & _needed(rank, world)}:
        lost |= more
    others = [rank for rank, at in where.items() if at.world_size and rank not in done]
    return lost.issuperset([*left, *others])


def _world(
    where: Mapping[int, run_pb2.Where], left: Collection[int], ranks: Collection[int], size: int
) -> dict[int, run_pb2.Where]:
    """Return the ranks that are one world with those that go on: the mesh or the run; none where that is not sure."""
    sizes = {where[rank].world_size for rank in left}
    of_world = {size: range(size), len(ranks): ranks}.get(min(sizes), ()) if len(sizes) == 1 else ()
    there = {rank: at.world_rank for rank, at in where.items() if at.world_size in sizes}
    if not where.keys() >= {*of_world} >= there.keys() or len({*there.values()}) < len(there):
        return {}
    return {rank: where[rank] for rank in of_world}


def _waits(at: run_pb2.Where) -> bool:
    return at.state == run_pb2.Where.STATE_COLLECTIVE and not at.HasField("handles_s")


def _needed(rank: int, world: Mapping[int, run_pb2.Where]) -> set[int]:
    """Return the ranks that have yet to make the call that a rank waits in."""
    at = world[rank]
    call, made = at.call, at.calls.get(at.call.group, 0)
    if at.collective == _INIT:
        return {other for other, there in world.items() if there.collective != _INIT}
    if call.HasField("peer"):
        return {other for other, there in world.items() if there.world_size and there.world_rank == call.peer}
    if has_one_peer(call):
        return set()  # from any rank
    members = (other for other, there in world.items() if call.group == _DEFAULT or call.group in there.calls)
    return {other for other in members if world[other].calls.get(call.group, 0) < made}
