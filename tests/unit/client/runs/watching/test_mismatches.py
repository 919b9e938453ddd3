"""Whose calls do not match."""

from __future__ import annotations

from monarch_nb.client.runs.watching.mismatches import are_unlike, explain_mismatch
from monarch_nb.proto import run_pb2

DEFAULT, PAIR = "the default group", "group dp (ranks 0,2)"


def at(collective: str, count: int, operands: str = "float32[4]", group: str = DEFAULT, **other: int) -> run_pb2.Where:
    """Return where a rank waits."""
    call = run_pb2.Call(collective=collective, operands=operands, group=group)
    return run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, call=call, calls={group: count, **other})


def test_equal_calls_match() -> None:
    where = {rank: at("all_reduce", 7) for rank in range(4)}
    old = run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, collective="all_reduce", line="train.py:4")
    assert not are_unlike(where)
    for each in (where, {}, {0: old, 1: at("all_gather", 3)}):  # of old nodes nothing is known
        assert not explain_mismatch(each)


def test_other_tensors_are_told() -> None:
    where = {0: at("all_reduce", 7), 1: at("all_reduce", 7, "float32[8]"), 2: at("all_reduce", 7)}
    said = "call 7 in the default group is all_reduce of float32[4] on ranks 0,2, all_reduce of float32[8] on rank 1"
    assert explain_mismatch(where) == said
    assert are_unlike(where)


def test_who_is_ahead_is_told_and_is_no_hang_by_itself() -> None:
    """Ranks are not looked at in the same moment."""
    elsewhere = run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, line="train.py:4", calls={DEFAULT: 6})
    where = {0: at("all_reduce", 8), 1: at("all_gather", 7), 2: elsewhere}
    assert explain_mismatch(where) == "rank 0 is ahead in the default group: 8 calls, rank 1 7, rank 2 6"
    assert not are_unlike(where)


def finished(calls: int = 0) -> run_pb2.Where:
    return run_pb2.Where(state=run_pb2.Where.STATE_IDLE, calls={DEFAULT: calls} if calls else None)


def test_who_waits_in_a_call_that_is_over_elsewhere_is_told() -> None:
    where = {2: at("all_reduce", 4, "float32[8]"), 0: finished(4), 1: finished(4), 3: finished(4)}
    assert explain_mismatch(where) == (
        "call 4 in the default group is all_reduce of float32[8] on rank 2, and over on ranks 0-1,3: shapes or dtypes "
        "may differ"
    )
    assert explain_mismatch({1: at("recv", 4), 0: finished(4)}) == "", "each pair of ranks may have calls of its own"
    assert explain_mismatch({1: at("all_reduce", 4), 0: finished()}) == "", "its group is gone"


def test_who_has_finished_without_the_call_is_behind() -> None:
    assert explain_mismatch({2: at("all_reduce", 5), 0: finished(4)}) == ""  # that it has finished is said anyway
    where = {2: at("all_reduce", 5), 0: finished(3)}
    assert explain_mismatch(where) == "rank 2 is ahead in the default group: 5 calls, rank 0 3"


def test_groups_are_compared_each_with_itself() -> None:
    where = {
        0: at("all_reduce", 3, group=PAIR),
        2: at("broadcast", 3, group=PAIR),
        1: at("all_reduce", 9),
        3: at("barrier", 9, ""),
    }
    in_default = "call 9 in the default group is all_reduce of float32[4] on rank 1, barrier on rank 3"
    in_pair = f"call 3 in {PAIR} is all_reduce of float32[4] on rank 0, broadcast of float32[4] on rank 2"
    assert explain_mismatch(where) == f"{in_default}; {in_pair}"


def between(collective: str, peer: int, operands: str = "float32[4]") -> run_pb2.Where:
    """Return where a rank waits for one other."""
    where = at(collective, 5, operands)
    where.call.peer = peer
    return where


def test_who_waits_for_a_peer_in_a_collective() -> None:
    where = {0: between("recv", 2), 1: at("all_reduce", 5), 2: at("all_reduce", 5, "int64[2]")}
    assert explain_mismatch(where) == "rank 0 receives float32[4] from rank 2, which is in all_reduce of int64[2]"
    assert are_unlike(where), "the collective needs the rank that waits"
    where[2].call.group, where[2].calls["group dp (ranks 1-2)"] = "group dp (ranks 1-2)", 1
    assert not are_unlike({rank: where[rank] for rank in (0, 2)}), "rank 2 may come out of it"


def test_peers_that_wait_for_each_other() -> None:
    where = {0: between("recv", 2), 2: between("recv", 0, "int64[1]"), 1: between("recv", 0)}
    assert explain_mismatch(where) == (
        "ranks 0,2 wait for each other: rank 0 receives float32[4] from rank 2, rank 2 receives int64[1] from rank 0"
    )
    assert are_unlike(where)
    assert are_unlike({0: between("send", 1), 1: between("send", 2), 2: between("isend", 0)})
    meeting = {0: between("send", 1), 1: between("recv", 0), 2: between("recv", 1)}
    assert not explain_mismatch(meeting)
    assert not are_unlike(meeting)


def test_the_end_of_a_row_of_peers_is_told() -> None:
    computes = run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, line="train.py:4", calls={DEFAULT: 2})
    where = {0: computes, 1: between("recv", 0), 2: between("recv", 1), 3: between("recv", 0)}
    assert explain_mismatch(where) == "ranks 1,3 receive float32[4] from rank 0"
    assert not are_unlike(where)
