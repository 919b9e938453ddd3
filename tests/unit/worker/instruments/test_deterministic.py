"""Where two runs part."""

from __future__ import annotations

import pytest

from monarch_nb.worker.instruments import deterministic
from monarch_nb.worker.instruments.deterministic import GRADIENT, LOSS, PARAMETER, START, Record, parting

NAMES = ("a", "b")


def record(**others: str) -> Record:
    """Return what a run of two steps left; `others` has digests by kind, step and name: gradient2a."""
    steps = {0: {(START, name): "x" for name in NAMES}}
    for step in (1, 2):
        steps[step] = {(LOSS, "0"): "x", **{(kind, name): "x" for kind in (GRADIENT, PARAMETER) for name in NAMES}}
    for where, value in others.items():
        kind, step, name = where[:-2], int(where[-2]), where[-1]
        steps[step][kind, name] = value
    return Record(0, steps, done=2)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({}, ""),
        ({"start0b": "y"}, "from the start: 1 of 2 parameters begin with other values: b"),
        ({"loss20": "y", "gradient2a": "y"}, "first in step 2: the loss"),
        ({"gradient1a": "y", "loss20": "y"}, "first in step 1: the gradients of 1 of 2 parameters: a"),
        ({"parameter1a": "y", "parameter1b": "y"}, "first after step 1: 2 of 2 parameters: a, b"),
        ({"gradient1c": "y"}, "first in step 1: the gradients of 1 of 3 parameters: c"),
    ],
)
def test_the_first_that_is_another_is_named(others: dict[str, str], said: str) -> None:
    assert parting(record(), record(**others)) == said
    assert parting(record(**others), record()) == said


def test_a_run_that_was_interrupted_in_a_step_does_not_part_there() -> None:
    shorter = record()
    shorter.done = 1
    shorter.steps[2] = {(LOSS, "0"): "x"}
    assert parting(record(), shorter) == parting(shorter, record()) == ""
    shorter.steps[2] = {(LOSS, "0"): "y"}
    assert parting(record(), shorter) == "first in step 2: the loss"


def test_the_history_of_a_parameter_that_has_changed_no_more_since(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = record(parameter2b="last"), record(parameter1a="one", parameter2a="two", parameter2b="two")
    monkeypatch.setattr(deterministic, "_records", {7: older, 9: newer})
    assert deterministic.history("model.module.a", "two") == (9, "a", {0: "x", 1: "one", 2: "two"})
    assert deterministic.history("b", "last") == (7, "b", {0: "x", 1: "x", 2: "last"}), "of the run that left it so"
    assert deterministic.history("model.a", "new") is None, "it has changed since"
    assert deterministic.history("model.bb", "two") is None, "it has another name"
