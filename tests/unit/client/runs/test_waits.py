"""One sentence that says who waits for whom."""

from monarch_nb.client.connections.events import Result
from monarch_nb.client.runs.waits import ENDS, explain_past_waits, explain_waits, waiting_in
from monarch_nb.errors import RankFailure
from monarch_nb.proto import run_pb2


def at(collective: str = "", line: str = "train.py:41") -> run_pb2.Where:
    states = run_pb2.Where
    state = states.STATE_COLLECTIVE if collective else states.STATE_RUNNING
    return run_pb2.Where(state=state, collective=collective, line=line)


def failed(rank: int, outcome: str, name: str = "KeyError") -> Result:
    return Result(rank, outcome, 1.0, failure=RankFailure(rank, "node0", outcome, name, ""))  # type: ignore[arg-type]


def ok(rank: int) -> Result:
    return Result(rank, "ok", 1.0)


def test_the_example_of_the_issue() -> None:
    text = explain_waits({7: failed(7, "error")}, dict.fromkeys(range(7), at("all_reduce")))
    assert text == (
        "Stuck: ranks 0-6 wait in all_reduce (train.py:41) for rank 7, which raised KeyError. "
        "Press ■ (or %mesh interrupt) to free them; variables stay."
    )
    soon = explain_waits({7: failed(7, "error")}, dict.fromkeys(range(7), at("recv")), what_to_do=ENDS)
    assert soon.endswith(" which raised KeyError. This ends by itself in some seconds; variables stay.")
    assert explain_waits({0: ok(0)}, {1: at(), 2: at()}) == explain_waits({}, {}) == "", "nobody waits"


def test_of_one_rank_that_waits_it_is_freed() -> None:
    text = explain_waits({0: failed(0, "error")}, {1: at("all_reduce"), 2: at(line="train.py:9")})
    assert text.endswith(" Press ■ (or %mesh interrupt) to free it; variables stay.")


def test_afterwards_it_is_the_past() -> None:
    where = {0: at("all_reduce"), 1: at("all_reduce"), 2: at("recv")}
    assert explain_past_waits({3: failed(3, "error")}, where) == (
        "ranks 0-1 waited in all_reduce (train.py:41), rank 2 waited in recv (train.py:41) "
        "for rank 3, which raised KeyError"
    )


def test_what_became_of_the_others() -> None:
    for result, says in (
        (ok(1), "finished the cell"),
        (failed(1, "error", "ValueError"), "raised ValueError"),
        (failed(1, "died"), "died"),
        (failed(1, "interrupted"), "ended by an interrupt"),
        (failed(1, "cancelled"), "never ran it"),
    ):
        assert f" for rank 1, which {says}. Press" in explain_waits({1: result}, {0: at("recv")})


def test_those_that_work_are_said_to_be_where_they_are() -> None:
    where = {0: at("all_reduce"), 1: at("all_reduce"), 2: at(line="train.py:9"), 3: at(line="train.py:9")}
    text = "Stuck: ranks 0-1 wait in all_reduce (train.py:41) for ranks 2-3, which are at train.py:9. Press"
    assert explain_waits({}, where).startswith(text)
    assert explain_past_waits({4: ok(4)}, where) == (
        "ranks 0-1 waited in all_reduce (train.py:41) "
        "for rank 4, which finished the cell, and ranks 2-3, which were at train.py:9"
    )
    many = {rank: at(line=f"train.py:{rank}") for rank in range(1, 9)}
    assert " for ranks 1-8, which are at other lines. Press" in explain_waits({}, {0: at("barrier")} | many)


def test_who_stands_at_a_breakpoint_is_said_with_what_ends_that() -> None:
    where = {0: at("backward"), 1: at(line="Cell In[25]:2"), 2: at("backward")}
    assert explain_waits({}, where, stopped={1, 9}) == (
        "Stuck: ranks 0,2 wait in backward (train.py:41) for rank 1, which is at a breakpoint (Cell In[25]:2). "
        "Type continue at the prompt, or at that of %mesh debug, and rank 1 goes on. "
        "Press ■ (or %mesh interrupt) to free them; variables stay."
    )
    assert explain_past_waits({}, where, stopped={1}).endswith("which was at a breakpoint (Cell In[25]:2)")
    assert "Type continue" not in explain_waits({}, where, stopped={0}), "its thread beside has stopped"
    many = {0: at("recv")} | {rank: at(line=f"train.py:{rank}") for rank in range(1, 9)}
    text = explain_waits({}, many, stopped={3, 4})
    assert "ranks 1-2,5-8, which are at other lines, and ranks 3-4, which are at a breakpoint. Type" in text
    assert "debug, and ranks 3-4 go on. Press" in text


def test_others_are_grouped() -> None:
    results = {rank: failed(rank, "error") for rank in (1, 2)} | {3: failed(3, "died"), 5: failed(5, "error")}
    assert " for ranks 1-2,5, which raised KeyError, and rank 3, which died. Press" in explain_waits(
        results, {0: at("recv")}
    )


def test_a_wait_for_work_is_named_by_its_collective() -> None:
    for called, named in {"all_reduce": "all_reduce (train.py:5)", "": "wait (train.py:5)"}.items():
        where = at("wait", "train.py:5")
        where.call.collective = called
        assert waiting_in({0: where}) == {0: named}
