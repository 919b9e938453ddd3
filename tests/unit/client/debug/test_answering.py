"""When the debugger's prompt opens, and what is said to those who leave it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.debug import answering
from monarch_nb.client.debug.answering import SETTLES, Answering, Screen
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.runs.results import RunStops


class FakeRun:
    """One of whose ranks another stops whenever somebody has waited for a moment, as long as there are some."""

    def __init__(self, ranks: list[int]) -> None:
        self.mesh = SimpleNamespace(reservation=SimpleNamespace(name="dev"))
        self.stops = RunStops()
        self.stopped: list[int] = []
        self._ranks = iter(ranks)
        self._stop_next()

    def wait(self, timeout_s: float) -> bool:
        self._stop_next()
        return False

    def _stop_next(self) -> None:
        for rank in self._ranks:
            self.stopped.append(rank)
            self.stops.note(rank, 1, on=True)
            return


def answer(monkeypatch: pytest.MonkeyPatch, run: Any, *, silent: bool = False) -> tuple[list[list[int]], list[str]]:
    """Leave every prompt; return who had stopped when they opened, and what was said.

    Args:
        silent: no rank answers the question where it has stopped.
    """

    def debugger(_: Any) -> Any:
        there = [] if silent else run.stopped
        return SimpleNamespace(stops=lambda: [SimpleNamespace(rank=rank, number=1) for rank in there])

    monkeypatch.setattr(answering, "Debugger", debugger)
    monkeypatch.setattr(answering, "can_answer", lambda: True)
    asked: list[list[int]] = []
    said: list[str] = []

    def prompt(_: Any) -> Any:
        asked.append(run.stopped.copy())
        return "quit"

    Answering(run, Screen(prompt, said.append, answering.SCREEN.stays))()
    return asked, said


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([2], "rank 2 stays where it is, and this program waits for it: monarch-nb debug dev in"),
        ([0, 2], "ranks 0,2 stay where they are, and this program waits for them: monarch-nb debug dev in"),
    ],
)
def test_who_leaves_the_prompt_is_told_who_stays(monkeypatch: pytest.MonkeyPatch, ranks: list[int], said: str) -> None:
    _, [line] = answer(monkeypatch, FakeRun(ranks))
    assert line.startswith(said)
    assert line.endswith("interrupts it" if len(ranks) == 1 else "interrupts them")


def test_the_prompt_opens_when_no_more_ranks_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    [asked], _ = answer(monkeypatch, FakeRun([3, 0, 1, 2]))
    assert asked == [3, 0, 1, 2]


def test_ranks_that_go_on_stopping_do_not_keep_it_from_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    [asked], _ = answer(monkeypatch, FakeRun(list(range(100))))
    assert asked == list(range(SETTLES + 1))


def test_where_nobody_can_answer_only_what_this_run_executes_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = FakeRun([0])
    run.id, run.emit = "mine", lambda _: None
    stops = [SimpleNamespace(rank=0, number=1, run_id=run_id, place="a.py:1") for run_id in ("mine", "others")]
    told: list[str] = []

    class Scripted(Debugger):
        def stops(self) -> list[Any]:
            return stops

        async def _tell_all(self, stops: Iterable[Any], *_: Any) -> list[Any]:
            told.extend(stop.run_id for stop in stops)
            return []

    monkeypatch.setattr(answering, "Debugger", Scripted)
    monkeypatch.setattr(answering, "can_answer", lambda: False)
    Answering(run, answering.SCREEN)()
    assert told == ["mine"]


def test_a_stop_of_a_rank_that_does_not_answer_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun([0])
    run.stops.take_news()
    assert answer(monkeypatch, run, silent=True) == ([], [])
    assert run.stops.news.is_set(), "who waits for the run asks again"
    run.stops.note(0, 1, on=False)
    run.stops.take_news()
    assert answer(monkeypatch, run, silent=True) == ([], [])
    assert not run.stops.news.is_set(), "it goes on"
