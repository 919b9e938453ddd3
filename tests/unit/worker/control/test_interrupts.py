"""An interrupt of a run whose user code has a handler of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from monarch_nb.worker.control import interrupts as activities_module
from monarch_nb.worker.control.interrupts import ActiveRun, Activities, Activity, Interrupter
from monarch_nb.worker.shell.failures import RunInterrupted
from monarch_nb.worker.user_code import UserCode


class Run(ActiveRun):
    """Is where the test says, and counts its signals."""

    place: FrameType
    pokes = 0

    def frame(self) -> FrameType | None:
        return self.place

    def poke(self, *, for_own_handler: bool = False) -> None:
        self.pokes += for_own_handler


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
def test_a_handler_is_told_and_a_collective_that_keeps_python_from_calling_it_is_broken_at_the_next_press(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collective, another = here(), here()
    monkeypatch.setattr(activities_module.breaking, "collective", {collective: "all_reduce", another: "barrier"}.get)
    activities = Watched()
    interrupter, run = begun(activities, collective)
    assert interrupter.request("1")
    assert (run.delivered, run.pokes, interrupter.press()) == (True, 1, False)
    assert not activities.freed, "its peers may be about to come: a handler that sets a flag lets the step end"
    assert interrupter.request("1")
    assert (activities.freed, run.pokes) == ([run], 1)
    run.place = another
    assert interrupter.request("1")
    assert (activities.freed, run.pokes) == ([run], 2), "the handler was called since: it is told once more"


@pytest.mark.usefixtures("own_handler")
def test_a_signal_of_ours_that_comes_late_is_none_and_one_that_user_code_sends_itself_counts() -> None:
    interrupter, _ = begun(Activities(), here())
    run = ActiveRun("1")
    interrupter.begin(run)
    interrupter.install()

    def raised(send: Callable[[], object]) -> type[BaseException] | None:
        try:
            activities_module._call_between(send)
        except KeyboardInterrupt as error:
            return type(error)
        return None

    def own() -> None:
        signal.raise_signal(signal.SIGINT)

    sent = (own, lambda: interrupter.request("1"), run.poke, own, run.poke, own)
    expected = [KeyboardInterrupt, RunInterrupted, None, KeyboardInterrupt, None, KeyboardInterrupt]
    assert [raised(send) for send in sent] == expected
