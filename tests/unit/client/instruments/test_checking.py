"""What a run can have as instruments, and what is said of the rest before ranks hear of it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from monarch_nb.client.instruments import asked
from monarch_nb.client.instruments.asked import checked
from monarch_nb.errors import UsageError
from monarch_nb.worker.runs.instruments import INSTRUMENTS, _class_of


def test_each_instrument_has_the_options_that_its_class_takes() -> None:
    assert asked._OPTIONS.keys() == INSTRUMENTS.keys()
    for name, options in asked._OPTIONS.items():
        assert options.keys() == inspect.signature(_class_of(name)).parameters.keys(), name


@pytest.mark.parametrize(
    "right",
    [
        {"torch-profile": {"steps": 2, "ranks": [0, 3], "most_s": 0.0, "most_events": 9}},
        {"memory-history": {"ranks": None}, "python-profile": {"hz": 20}},
        {"watch": {"what": ("loss", "grad")}},
    ],
)
def test_right_options_are_left_as_they_are(right: dict[str, dict[str, Any]]) -> None:
    assert checked(right, range(4)) == right


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"determined": {}}, "there is no instrument 'determined': there are torch-profile, python-profile, "),
        ({"watch": {"grads": True}}, "watch has no option 'grads': it has what"),
        ({"watch": {"what": ["foo"]}}, "what of watch is a list with some of grad, loss, param, not \\['foo'\\]"),
        ({"torch-profile": {"steps": 0}}, "steps of torch-profile is a number from 1 on, not 0"),
        ({"python-profile": {"hz": 0}}, "hz of python-profile is between 1 and 1000, not 0"),
        ({"memory-history": {"ranks": [2, 7]}}, "memory-history is to record rank 7, but the run is on ranks 0-3"),
    ],
)
def test_what_makes_no_sense_is_said(wrong: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked(wrong, range(4))
