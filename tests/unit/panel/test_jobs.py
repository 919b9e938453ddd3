"""Long work says what it does, can be cancelled, and tells how it ended."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from monarch_nb.errors import CapacityError
from monarch_nb.panel.jobs import MAX_KEPT, Jobs, Say
from monarch_nb.panel.shown.view import Json


class Told:
    """What was published, in order."""

    def __init__(self) -> None:
        self.events: queue.Queue[Json] = queue.Queue()
        self.jobs = Jobs(self.events.put)

    def until(self, state: str) -> list[Json]:
        """Wait for a state; return the jobs as they were told up to there."""
        told = [self.events.get(timeout=10)["job"]]
        while told[-1]["state"] != state:
            told.append(self.events.get(timeout=10)["job"])
        return told


@pytest.fixture
def told() -> Told:
    return Told()


def test_progress_and_result(told: Told) -> None:
    def work(say: Say) -> Any:
        say("starting 8 ranks")
        return {"reservation": "a"}

    job = told.jobs.start("reserve", "Reserving dev", work)
    assert (job["state"], job["cancellable"]) == ("running", True)
    first, last = told.until("done")
    assert (first["message"], first["state"]) == ("starting 8 ranks", "running")
    assert (last["result"], last["error"], last["cancellable"]) == ({"reservation": "a"}, None, False)
    assert first["id"] == last["id"] == job["id"]


def test_an_error_is_told_also_one_of_our_own_making(told: Told) -> None:
    def work(_: Say) -> None:
        raise CapacityError("only 1 of 2 nodes can take 8 procs")

    told.jobs.start("reserve", "Reserving dev", work)
    assert told.until("failed")[-1]["error"] == "only 1 of 2 nodes can take 8 procs"
    told.jobs.start("reserve", "Reserving dev", lambda _: 1 / 0)
    assert told.until("failed")[-1]["error"] == "ZeroDivisionError: division by zero"


def test_cancelled_work_cleans_up_first(told: Told) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    def work(say: Say) -> None:
        try:
            waits.set()
            goes_on.wait(10)
            say("next")
        finally:
            say("cleaning up")

    job = told.jobs.start("up", "Starting a pool", work)
    assert waits.wait(10)
    assert told.jobs.cancel(job["id"])
    goes_on.set()
    messages = [each["message"] for each in told.until("cancelled")]
    assert messages == ["cancelling", "cleaning up", "cancelled"]


def test_what_there_is_to_say_of_a_cancellation_is_told(told: Told) -> None:
    def work(_: Say) -> None:
        raise KeyboardInterrupt("Slurm job 12 was cancelled")

    told.jobs.start("reserve", "Reserving", work)
    assert told.until("cancelled")[-1]["message"] == "cancelled: Slurm job 12 was cancelled"


def test_a_job_that_has_ended_is_cancelled_without_effect_and_one_that_nobody_knows_is_not(told: Told) -> None:
    ended = threading.Event()
    job = told.jobs.start("stacks", "Stacks", lambda _: None, done=ended.set)
    told.until("done")
    assert ended.wait(10)
    assert told.jobs.cancel(job["id"])
    assert told.events.empty()
    assert not told.jobs.cancel("nonsense")


def test_the_newest_50_are_known(told: Told) -> None:
    first = told.jobs.start("stacks", "Stacks", lambda _: None)
    for _ in range(MAX_KEPT - 1):
        told.until("done")
        told.jobs.start("stacks", "Stacks", lambda _: None)
    told.until("done")
    assert told.jobs.cancel(first["id"]), "it is known"


def test_old_jobs_are_forgotten_and_running_ones_are_not(told: Told) -> None:
    goes_on = threading.Event()
    running = told.jobs.start("up", "Starting a pool", lambda _: goes_on.wait(10) and None)
    first = told.jobs.start("stacks", "Stacks", lambda _: None)
    for _ in range(MAX_KEPT + 5):
        told.until("done")
        told.jobs.start("stacks", "Stacks", lambda _: None)
    assert running["id"] in [job["id"] for job in told.jobs.running()]
    assert not told.jobs.cancel(first["id"]), "it is forgotten"
    goes_on.set()
    for _ in range(2):
        told.until("done")
