"""Ranks that train a model each: one line, once, with their number."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import events
from monarch_nb.client.runs import notices
from monarch_nb.client.runs.notices import LoneTraining


class Harness:
    def __init__(self) -> None:
        self.core: Any = SimpleNamespace(has_told_lone_training=False)
        self.told: list[events.Event] = []

    def run(self, *, is_script: bool = False) -> LoneTraining:
        run: Any = SimpleNamespace(mesh=SimpleNamespace(core=self.core), emit=self.told.append, is_script=is_script)
        return LoneTraining(run)

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, events.Notice)]


async def test_ranks_with_models_alike_are_told_once_in_the_life_of_a_mesh() -> None:
    harness = Harness()
    for _ in range(2):
        run = harness.run()
        for rank in (0, 1, 3, 1):
            run.add(rank, "a")
        run.add(2, "b")
        run.say()
        run.say()
    [text] = harness.texts
    assert text.startswith("3 ranks each train a model of their own (no process group)")


async def test_each_script_is_told_whose_processes_are_fresh() -> None:
    harness = Harness()
    harness.core.has_told_lone_training = True
    for _ in range(2):
        run = harness.run(is_script=True)
        run.add(0, "a")
        run.add(1, "a")
        run.say()
        run.say()
    assert len(harness.texts) == 2


async def test_models_that_differ_are_meant_to() -> None:
    run = (harness := Harness()).run()
    for rank in range(4):
        run.add(rank, f"model {rank}")
    run.say()
    assert harness.texts == []


async def test_while_the_run_goes_on_it_is_said_when_all_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_QUIET_S", 0.01)
    harness = Harness()
    run = harness.run()
    run.add(0, "a")
    run.add(1, "a")
    assert harness.texts == []
    async with asyncio.timeout(10):
        while not harness.texts:
            await asyncio.sleep(0.01)
    run.say()
    assert len(harness.texts) == 1
