"""Whose calls do not match."""

from __future__ import annotations

from monarch_nb.client.runs.mismatches import are_unlike, explain_mismatch
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
    assert explain_mismatch(where) == f"{said}: shapes differ"
    assert are_unlike(where)


def test_who_is_ahead_is_told_and_is_no_hang_by_itself() -> None:
    """Ranks are not looked at in the same moment."""
    elsewhere = run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, line="train.py:4", calls={DEFAULT: 6})
    where = {0: at("all_reduce", 8), 1: at("all_gather", 7), 2: elsewhere}
    assert explain_mismatch(where) == "rank 0 is ahead in the default group: 8 calls, rank 1 7, rank 2 6"
    assert not are_unlike(where)


def finished(calls: int = 0, collective: str = "", operands: str = "", group: str = DEFAULT) -> run_pb2.Where:
    call = run_pb2.Call(collective=collective, operands=operands, group=group) if collective else None
    return run_pb2.Where(state=run_pb2.Where.STATE_IDLE, calls={DEFAULT: calls} if calls else None, call=call)


def test_who_waits_in_a_call_that_is_over_elsewhere_is_told() -> None:
    where = {2: at("all_reduce", 4, "float32[8]"), 0: finished(4), 1: finished(4), 3: finished(4)}
    assert explain_mismatch(where) == (
        "call 4 in the default group is all_reduce of float32[8] on rank 2, and over on ranks 0-1,3: shapes or dtypes "
        "may differ"
    )
    where |= {rank: finished(4, "all_reduce", f"float32[{4 if rank else 2}]") for rank in (0, 1, 3)}
    assert explain_mismatch(where) == (
        "call 4 in the default group is all_reduce of float32[2] on rank 0, all_reduce of float32[4] on ranks 1,3, "
        "all_reduce of float32[8] on rank 2: shapes differ; it is over on ranks 0-1,3: do not trust its "
        "result there"
    )
    assert are_unlike(where)
    alike = {0: finished(4, "broadcast", "float32[4]"), 1: at("broadcast", 4)}
    assert explain_mismatch(alike) == "", "its source has sent all"
    last = finished(4, "barrier", group=PAIR)
    assert "over on rank 0: shapes or dtypes may" in explain_mismatch({0: last, 1: at("all_reduce", 4)})
    assert explain_mismatch({1: at("recv", 4), 0: finished(4, "send", "int8[2]")}) == ""
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


def test_peers_of_a_world_of_some_ranks_are_told_as_the_mesh_numbers_them() -> None:
    """Ranks 1 and 3 are a world of their own, and wait for each other."""
    where = {1: between("recv", 1), 3: between("recv", 0)}
    for number, rank in enumerate(where):
        where[rank].world_size, where[rank].world_rank = 2, number
    assert explain_mismatch(where).startswith("ranks 1,3 wait for each other: rank 1 receives float32[4] from rank 3")
    assert are_unlike(where)
    alone = {1: where[1]}
    assert explain_mismatch(alone) == "", "nobody knows who number 1 is"
    assert not are_unlike(alone)


def test_the_end_of_a_row_of_peers_is_told() -> None:
    computes = run_pb2.Where(state=run_pb2.Where.STATE_RUNNING, line="train.py:4", calls={DEFAULT: 2})
    where = {0: computes, 1: between("recv", 0), 2: between("recv", 1), 3: between("recv", 0)}
    assert explain_mismatch(where) == "ranks 1,3 receive float32[4] from rank 0"
    assert not are_unlike(where)
