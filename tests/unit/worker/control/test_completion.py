"""Tab in a rank: names of what is alive, and no code of the user's runs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.control.completion import complete
from monarch_nb.worker.runs.values import LiveActors
from unit.worker.users import Trap

NAMESPACE: dict[str, Any] = {
    "alpha": 1,
    "_hidden": 2,
    "trap": Trap(),
    "os": os,
    "table": {"lr": 1, "batch size": 2, 3: 4},
    "nested": SimpleNamespace(inner=SimpleNamespace(deep=1)),
    "actors": LiveActors(lambda: {"trainers": SimpleNamespace(model=1), "data": 2}),
    "module": SimpleNamespace(_modules={"layer": SimpleNamespace(_parameters={"weight": 1})}),
}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("al", ["all", "alpha"]),
        ("x = alp", ["alpha"]),
        ("_hid", ["_hidden"]),
        ("trap.", ["computed", "here"]),
        ("trap.computed.", []),
        ("os.path.joi", ["join"]),
        ("nested.inner.", ["deep"]),
        ("module.layer.", ["weight"]),
        ("table['", ["batch size", "lr"]),
        ("actors['", ["data", "trainers"]),
        ('actors["trainers"].', ["model"]),
        ("actors['nobody'].", []),
        ("f().", []),
        ("if True:\n    alph", ["alpha"]),
        ("whil", ["while"]),
        ("'text al", ["all", "alpha"]),
    ],
)
def test_completion(code: str, expected: list[str]) -> None:
    assert complete(code, len(code), NAMESPACE)[0] == expected


def test_completion_in_the_middle_and_of_nothing() -> None:
    assert complete("alp + 1", 3, NAMESPACE) == (["alpha"], 0)
    assert "alpha" in complete("", 0, NAMESPACE)[0]
    assert "_hidden" not in complete("", 0, NAMESPACE)[0]
