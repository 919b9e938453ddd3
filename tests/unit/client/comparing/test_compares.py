"""What is said of an expression that ranks can not compare."""

from __future__ import annotations

import pytest

from monarch_nb.client.comparing.compares import _check_one_expression, _without_ours
from monarch_nb.errors import RankFailure, RunFailed, UsageError


def test_what_is_not_one_expression_is_refused_before_ranks_see_it() -> None:
    with pytest.raises(UsageError, match=r"^give one expression to compare, not 2: \(model, opt\)$"):
        _check_one_expression("model opt")
    with pytest.raises(UsageError, match=r"^model \+ is no expression of Python: invalid syntax$"):
        _check_one_expression("model +")
    for text in ("model", "model, opt", "a + b", "[x for x in y]", "a if b else c"):
        _check_one_expression(text)


def test_a_name_that_is_nearly_there() -> None:
    failure = RankFailure(rank=1, host="a", kind="error", name="NameError", message="name 'modle' is not defined")
    told = str(_without_ours(RunFailed("", [failure]), "modle", lambda rank: ["step", "model"]))
    assert told.startswith("rank 1: NameError: name 'modle' is not defined; did you mean `model`?")


def test_a_rank_that_dies_in_it_is_no_fault_of_the_expression() -> None:
    failure = RankFailure(rank=1, host="a", kind="died", name="SIGKILL", message="killed by SIGKILL", signal=9)
    told = str(_without_ours(RunFailed("", [failure]), "model", lambda rank: []))
    assert told.splitlines()[-1] == "%mesh restart -t 1 starts it again; variables are lost there"
