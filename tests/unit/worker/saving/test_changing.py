"""What is said of a load that stops in the middle."""

from __future__ import annotations

from monarch_nb.client.saving.asking import became_of_load
from monarch_nb.worker.saving.asked import NOT_KNOWN, UNCHANGED, Change


def test_each_name_is_said_to_be_half_loaded_loaded_or_as_before() -> None:
    change = Change()
    assert not change.began
    change.begin(["model", "optimizer", "step", "noise"], in_place=["model", "optimizer"])
    assert change.describe() == "model, optimizer may be half loaded; step, noise are as before; load again"
    change.apply("model")
    change.applied("model")
    change.apply("optimizer")
    assert change.describe() == ("optimizer may be half loaded; model is loaded; step, noise are as before; load again")


def test_ranks_that_tell_the_same_are_told_together() -> None:
    line = "model may be half loaded; load again"
    assert became_of_load([0, 2, 3], [0, 2], {0: line, 2: line}) == f"ranks 0,2: {line}, rank 3: all is loaded"


def test_a_rank_that_says_nothing_is_not_said_to_be_unchanged() -> None:
    """Its line may be lost: silence is no word of what it holds."""
    assert Change().describe() == UNCHANGED
    assert became_of_load([0, 1], [0, 1], {0: UNCHANGED, 1: UNCHANGED}) == "nothing has changed on the others"
    assert became_of_load([0, 1], [0, 1], {0: UNCHANGED}) == f"rank 0: {UNCHANGED}, rank 1: {NOT_KNOWN}"
