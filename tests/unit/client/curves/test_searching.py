"""Which runs a number is drawn of where nobody says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from monarch_nb.client.curves.searching import LOOKED_AT_RUNS, Searched, search
from monarch_nb.client.curves.words import in_older
from monarch_nb.client.logs.metrics import Found, MetricInfo
from monarch_nb.errors import UsageError


@dataclass(eq=False)
class Reads:
    """Reads a run that has printed some names."""

    number: int
    printed: str = ""
    finished: bool = True
    asked: int = 0

    async def names(self, _: float) -> Found:
        self.asked += 1
        metrics = [MetricInfo(name, "", 5, 0.0, (0,)) for name in self.printed.split()]
        return Found(metrics, True, 0, self.finished)


def looked_at(runs: list[Any], *names: str, older: bool = False) -> Searched:
    return asyncio.run(search(iter(runs[::-1]), names, older=older))


def drawn(runs: list[Any], *names: str, queued: tuple[int, ...] = ()) -> Mapping[int, list[str]]:
    return {run.number: its for run, its in looked_at(runs, *names).by_name(names, queued).items()}


def test_the_newest_that_has_all_names_is_drawn() -> None:
    runs = [Reads(1, "loss acc"), Reads(2, "loss acc"), Reads(3, "loss"), Reads(4)]
    assert drawn(runs, "loss", "acc") == {2: ["loss", "acc"]}
    assert runs[0].asked == 0
    assert drawn(runs, "loss") == {3: ["loss"]}


def test_where_none_has_all_each_name_is_drawn_of_the_newest_that_has_it() -> None:
    runs = [Reads(17, "loss"), Reads(18, "loss lr"), Reads(19, "acc lr"), Reads(20)]
    assert drawn(runs, "loss", "acc", "lr") == {18: ["loss"], 19: ["acc", "lr"]}


def test_what_none_has_may_come_from_a_run_that_goes_on() -> None:
    runs = [Reads(1, "acc"), Reads(2, finished=False), Reads(3, finished=False)]
    assert drawn(runs, "loss") == {3: ["loss"]}
    assert drawn(runs, "loss", "acc") == {1: ["acc"], 3: ["loss"]}
    assert drawn(runs, "loss", queued=(3,)) == {2: ["loss"]}, "that one prints sooner"
    assert drawn([Reads(1, finished=False)], "loss", queued=(1,)) == {1: ["loss"]}
    assert drawn([Reads(1, "loss"), Reads(2, finished=False)], "loss") == {1: ["loss"]}, "there is something to draw"


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([Reads(1, "acc")], "no line of run 1 has 'loss'; there are acc; --run N draws another run's"),
        ([Reads(1, "loss2"), Reads(2, "acc")], "none of the newest 2 runs printed loss; nearest: loss2 (run 1)"),
        ([Reads(1, "a"), Reads(2, "b")], "none of the newest 2 runs printed loss; there are b (run 2), a (run 1)"),
        (
            [Reads(1), Reads(2)],
            "none of the newest 2 runs printed a number with a name beside it, as in loss: 2.31",
        ),
        (
            [Reads(1, "loss"), *(Reads(number, "acc") for number in range(2, 2 + LOOKED_AT_RUNS))],
            "none of the newest 20 runs printed loss; there are acc (run 21); --run N draws an older run's",
        ),
    ],
)
def test_what_is_said_where_none_has_it(runs: list[Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        drawn(runs, "loss")
    assert str(refused.value) == said


def test_what_only_older_runs_have_is_said() -> None:
    runs = [Reads(1, "loss"), Reads(2, "loss lr step"), Reads(3, "acc lr"), Reads(4)]
    found = looked_at(runs, older=True)
    assert found.newest().number == 3
    assert in_older(found.older_names()) == "older runs have loss (run 2)"
    assert in_older(looked_at(runs[2:], older=True).older_names()) == ""
    assert in_older(dict.fromkeys("abcdefghij", 1)).endswith("h (run 1) and 2 more")
