"""An interrupt of a run whose user code has a handler of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from monarch_nb.worker.control import activities as activities_module
from monarch_nb.worker.control import interrupts as interrupts_module
from monarch_nb.worker.control.activities import Activities, Activity
from monarch_nb.worker.control.interrupts import ActiveRun, Interrupter
from monarch_nb.worker.user_code import UserCode


class Run(ActiveRun):
    """Is where the test says, and counts its signals."""

    place: FrameType
    pokes = 0

    def frame(self) -> FrameType | None:
        return self.place

    def poke(self) -> None:
        self.pokes += 1


class Watched(Activities):
    """Note who was looked at, to be freed."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[Activity] = []

    def free_if_hung(self, activity: Activity) -> None:
        self.freed.append(activity)


@pytest.fixture
def own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def here() -> FrameType:
    return sys._getframe()


def begun(activities: Activities, place: FrameType) -> tuple[Interrupter, Run]:
    loop = asyncio.new_event_loop()
    loop.close()
    interrupter = Interrupter(activities, loop, UserCode.__new__(UserCode), set(), set())
    run = Run("1")
    run.place = place
    interrupter.begin(run)
    return interrupter, run


@pytest.mark.usefixtures("own_handler")
def test_a_handler_is_told_when_no_collective_keeps_it_from_being_called() -> None:
    interrupter, run = begun(Watched(), here())
    assert interrupter.request("1")
    assert (run.delivered, run.pokes, interrupter.press()) == (True, 1, False)


@pytest.mark.usefixtures("own_handler")
def test_a_collective_that_hangs_is_broken_for_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    collective, handler = here(), here()
    names = {collective: "all_reduce", handler: "barrier"}
    monkeypatch.setattr(activities_module.breaking, "collective", names.get)
    monkeypatch.setattr(interrupts_module, "_FORCE_AFTER_S", 0.0)
    activities = Watched()
    interrupter, run = begun(activities, collective)
    assert interrupter.request("1")
    assert interrupter.press()
    assert interrupter.press()
    assert (run.delivered, run.pokes) == (False, 1)
    assert set(activities.freed) == {run}
    run.place, count = handler, len(activities.freed)  # Python code has run: the handler, which has a collective itself
    assert not interrupter.press()
    assert (run.delivered, run.pokes, len(activities.freed)) == (True, 1, count)
