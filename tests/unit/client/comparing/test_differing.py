"""The questions of a comparison: how many there are, and what their answers make of ranks that differ."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from monarch_nb.client.comparing import differing
from monarch_nb.client.comparing.differing import Asking, compare
from monarch_nb.client.comparing.report import DiffReport
from monarch_nb.worker import comparing
from monarch_nb.worker.comparing import Leaves


class InProcess(Asking):
    """Asks "ranks" that are values of this process."""

    def __init__(self, value_of: Callable[[int], Any]) -> None:
        self.value_of = value_of
        self.questions: list[str] = []

    def ask(self, ranks: Iterable[int], question: str) -> dict[int, Any]:
        self.questions.append(question)
        told = {}
        for rank in ranks:
            comparing._compared = Leaves(self.value_of(rank))
            told[rank] = pickle.loads(zlib.decompress(eval(question, vars(comparing), {"value": self.value_of(rank)})))
        return told


def compared(value_of: Callable[[int], Any]) -> tuple[DiffReport, list[str]]:
    asking = InProcess(value_of)
    return compare(asking, [(0, 1, 2, 3)], "x", "begin(value)"), asking.questions


def test_many_tensors_that_differ_are_asked_for_together() -> None:
    def value_of(rank: int) -> dict[str, torch.Tensor]:
        last = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
        return {f"{number}": last * (number if rank == 2 else 0) for number in range(1, 21)}

    report, questions = compared(value_of)
    distances = [each.versions[1].distance for each in report.differences]
    assert distances == [f"greatest |difference| {number} at [2, 1]" for number in range(1, 21)]
    assert [each.partition("(")[0] for each in questions] == ["begin", "leaves", "look_at", "elements", "end"]


def test_answers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differing, "MOST_ELEMENTS", 10)

    def value_of(rank: int) -> list[torch.Tensor]:
        return [torch.full((size,), float(rank == 3)) for size in (4, 6, 4, 40, 1)]

    report, questions = compared(value_of)
    assert {each.versions[1].distance for each in report.differences} == {"greatest |difference| 1 at [0]"}
    batches = [question for question in questions if question.startswith("elements")]
    assert [each.count("(") - 1 for each in batches] == [2, 1, 1, 1]


def test_three_versions_are_each_compared_with_the_most_common_one() -> None:
    values = {1: [0.0, 0.5, 0.0], 3: [0.0, 2.0, 3.0]}
    report, _ = compared(lambda rank: torch.tensor(values.get(rank, [0.0, 0.0, 0.0])))
    [difference] = report.differences
    assert [(version.ranks, version.distance) for version in difference.versions] == [
        ((0, 2), ""),
        ((1,), "greatest |difference| 0.5 at [1]"),
        ((3,), "greatest |difference| 3 at [2]"),
    ]
