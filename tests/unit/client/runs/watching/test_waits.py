"""One sentence that says who waits for whom."""

from monarch_nb.client.connections.events import Result
from monarch_nb.client.runs.watching.waits import explain_past_waits, explain_waits, waiting_in
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
    assert text.startswith("ranks 0-6 wait in all_reduce (train.py:41); rank 7 raised KeyError: interrupt")
    assert explain_waits({0: ok(0)}, {1: at(), 2: at()}) == explain_waits({}, {}) == "", "nobody waits"


def test_afterwards_it_is_the_past() -> None:
    where = {0: at("all_reduce"), 1: at("all_reduce"), 2: at("recv")}
    assert explain_past_waits({3: failed(3, "error")}, where) == (
        "ranks 0-1 waited in all_reduce (train.py:41), rank 2 waited in recv (train.py:41); rank 3 raised KeyError"
    )


def test_what_became_of_the_others() -> None:
    for result, says in (
        (ok(1), "rank 1 finished the cell"),
        (failed(1, "error", "ValueError"), "rank 1 raised ValueError"),
        (failed(1, "died"), "rank 1 died"),
        (failed(1, "interrupted"), "rank 1 interrupted"),
        (failed(1, "cancelled"), "rank 1 never ran it"),
    ):
        assert f"; {says}:" in explain_waits({1: result}, {0: at("recv")})


def test_those_that_work_are_said_to_be_where_they_are() -> None:
    where = {0: at("all_reduce"), 1: at("all_reduce"), 2: at(line="train.py:9"), 3: at(line="train.py:9")}
    text = "ranks 0-1 wait in all_reduce (train.py:41); ranks 2-3 are at train.py:9: interrupt"
    assert explain_waits({}, where).startswith(text)
    past = "ranks 0-1 waited in all_reduce (train.py:41); rank 4 finished the cell, ranks 2-3 were at train.py:9"
    assert explain_past_waits({4: ok(4)}, where) == past
    many = {rank: at(line=f"train.py:{rank}") for rank in range(1, 9)}
    assert "; ranks 1-8 are at other lines: interrupt" in explain_waits({}, {0: at("barrier")} | many)


def test_others_are_grouped() -> None:
    results = {rank: failed(rank, "error") for rank in (1, 2)} | {3: failed(3, "died"), 5: failed(5, "error")}
    assert "; ranks 1-2,5 raised KeyError, rank 3 died: interrupt" in explain_waits(results, {0: at("recv")})


def test_a_wait_for_work_is_named_by_its_collective() -> None:
    for called, named in {"all_reduce": "all_reduce (train.py:5)", "": "wait (train.py:5)"}.items():
        where = at("wait", "train.py:5")
        where.call.collective = called
        assert waiting_in({0: where}) == {0: named}
