"""What is said of an expression that ranks can not compare."""

from __future__ import annotations

import pytest

from monarch_nb.client.comparing.compares import _check_one_expression, _without_ours
from monarch_nb.errors import RankFailure, RunFailed, UsageError


def test_what_is_not_one_expression_is_refused_before_ranks_see_it() -> None:
    with pytest.raises(UsageError) as raised:
        _check_one_expression("model opt")
    assert str(raised.value) == (
        "diff compares a value of a rank with the same of other ranks, not two values with each other;\n"
        "several values are one expression, with commas: %mesh diff (model, opt)"
    )
    with pytest.raises(UsageError, match=r"^model \+ is no expression of Python: invalid syntax$"):
        _check_one_expression("model +")
    for text in ("model", "model, opt", "a + b", "[x for x in y]", "a if b else c"):
        _check_one_expression(text)


def test_a_number_of_a_run_is_no_value_of_ranks() -> None:
    for text, runs in (("12", "12"), ("12 14", "12,14"), ("12, 14", "12,14"), ("(12, 14)", "12,14")):
        with pytest.raises(UsageError) as raised:
            _check_one_expression(text)
        assert str(raised.value) == (
            f"{text} is the same on every rank, and diff compares what ranks hold: "
            "%mesh diff model, or %mesh diff model -t 0,1 for two ranks;\n"
            f"runs are compared by their curves: %mesh plot loss --run {runs}"
        )
    with pytest.raises(UsageError, match=r"for two ranks$"):
        _check_one_expression("'model'")


def test_a_name_that_is_nearly_there() -> None:
    failure = RankFailure(rank=1, host="a", kind="error", name="NameError", message="name 'modle' is not defined")
    told = str(_without_ours(RunFailed("", [failure]), "modle", lambda rank: ["step", "model"]))
    assert told.startswith("rank 1: NameError: name 'modle' is not defined; did you mean `model`?")


def test_a_rank_that_dies_in_it_is_no_fault_of_the_expression() -> None:
    failure = RankFailure(rank=1, host="a", kind="died", name="SIGKILL", message="killed by SIGKILL", signal=9)
    told = str(_without_ours(RunFailed("", [failure]), "model", lambda rank: []))
    assert told.splitlines()[-1] == "%mesh restart -t 1 starts it again; variables are lost there"
