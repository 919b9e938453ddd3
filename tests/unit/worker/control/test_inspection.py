"""Shift+Tab in a rank: what is said of a live name, and no code of the user's runs."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.ground import escapes
from monarch_nb.worker.control.completion import describe
from monarch_nb.worker.user_code import UserCode
from unit.worker.users import Trap, label


class Model:
    """A model."""

    def step(self, batch: list[int], lr: float = 0.1, *, trap: Any = Trap()) -> None:  # noqa: B008
        """Do a step."""

    @property
    def computed(self) -> int:
        """What is computed."""
        raise AssertionError("a property was run")

    @classmethod
    def load(cls, path: str) -> None: ...

    def __call__(self, x: int) -> int:
        raise AssertionError("it was called")


class Small(Model):
    def step(self, batch: list[int], lr: float = 0.1, *, trap: Any = Trap()) -> None:  # noqa: B008
        pass


INSPECTED = {"Model": Model, "model": Model(), "small": Small(), "text": "hello", "trap": Trap()}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "model.step",
            ["Signature: step(batch: list[int], lr: float = 0.1, *, trap: Any = <Trap>) -> None", "Do a step."],
        ),
        ("Model.step", ["Signature: step(self, batch: list[int], lr: float = 0.1, *, trap: Any = <Trap>) -> None"]),
        ("small.step", ["Docstring: Do a step."]),
        ("model.load", ["Signature: load(path: str) -> None"]),
        ("model", ["Signature: model(x: int) -> int", "Type: Model", "Docstring: A model."]),
        ("Model", ["Type: type", "Docstring: A model."]),
        ("model.computed", ["Type: property", "Docstring: What is computed."]),
        ("print", ["Type: builtin_function_or_method", "Prints the values"]),
        ("text", ["Type: str", "String form: 'hello'", "Length: 5"]),
        ("trap", ["Type: Trap"]),
        ("trap.computed.real", []),
        ("nowhere", []),
    ],
)
def test_inspection(name: str, lines: list[str]) -> None:
    shown = " ".join(escapes.strip(describe(name, INSPECTED, UserCode(label))).replace("\n", " ").split())
    assert bool(shown) == bool(lines)
    for line in lines:
        assert line.replace("\n", " ") in shown.replace("( ", "(").replace(", )", ")"), shown
